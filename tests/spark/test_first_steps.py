"""What a newcomer gets wrong once Spark runs: one sentence, exit code 2, nothing charged."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from spark_dphist.accounting.ledger import Caps, Ledger
from spark_dphist.cli import main

CONFIGURATION = """\
[input]
{source}

[groups]
{groups}

[mechanism]
name = "linear_log"
relative_error = 0.1
floor = 50

[ledger]
url = "sqlite:///ledger.db"
dataset = "visits"

[output]
{output}
"""
RIGHT = {
    "source": 'path = "records.parquet"',
    "groups": 'columns = ["carrier"]\nkeys.product.carrier = ["AA", "BB"]',
    "output": 'path = "out/counts"',
}
CSV = 'path = "records.csv"\nformat = "csv"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    records = pd.DataFrame({"carrier": ["AA", "BB", "AA"], "month": [1, 2, 3]})
    records.to_parquet("records.parquet")
    records.to_csv("records.csv", index=False)
    with Ledger.initialise("sqlite:///ledger.db") as ledger:
        ledger.add_dataset("visits", Caps.of(1))
    return tmp_path


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (
            {"source": 'path = "record.parquet"'},
            ["the input parquet record.parquet cannot be read"],
        ),
        ({"source": 'table = "lake.visits"'}, ["the input table lake.visits cannot be read"]),
        (
            {"source": 'path = "records.csv"'},
            ["the input parquet records.csv cannot be read", "Check the path or table, its format"],
        ),
        ({"source": CSV + 'schema = "carrier STRNG"'}, ["the input csv records.csv", "STRNG"]),
        ({"source": CSV + 'schema = "carrier, month"'}, ["the input csv records.csv", "yntax"]),
        ({"source": 'path = "records.parquet"\nformat = "parqet"'}, ["find", "parqet"]),
        (
            {"groups": 'columns = ["carier"]\nkeys.product.carier = ["AA"]'},
            ["'carier' is not a column of the input", "Did you mean 'carrier'?"],
        ),
        ({"output": 'path = "out/counts"\nformat = "parqet"'}, ["out/counts", "find", "parqet"]),
        ({"output": 'table = "no_such_schema.counts"'}, ["cannot be written", "no_such_schema"]),
        ({"output": 'path = "records.csv/counts"'}, ["nothing can be written", "Not a directory"]),
        ({"output": 'path = "gopher://host/counts"'}, ["cannot be used by this driver", "s3://"]),
        (
            {
                "groups": 'columns = ["carrier"]\nkeys.product.carrier = '
                '{ values = ["AA", ""], include_null = true }',
                "output": 'path = "out/counts"\nformat = "csv"',
            },
            ["'csv' does not keep every group key", "nullValue"],
        ),
    ],
    ids=[
        "no path",
        "no table",
        "csv as parquet",
        "type misspelt",
        "schema without types",
        "input format misspelt",
        "column misspelt",
        "output format misspelt",
        "no schema",
        "below a file",
        "no such file system",
        "keys written alike",
    ],
)
def test_a_wrong_request_is_one_sentence_and_charges_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], wrong: dict[str, str], parts: list[str]
) -> None:
    Path("visits.toml").write_text(CONFIGURATION.format(**{**RIGHT, **wrong}), encoding="utf-8")
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["run", "visits.toml"])
    said = capfd.readouterr().err
    (sentence,) = [line for line in said.splitlines() if "Error: " in line]
    assert left.value.code == 2, said
    assert all(part in sentence for part in parts), sentence
    assert "Traceback" not in said
    assert "An error occurred while calling" not in said
    with Ledger("sqlite:///ledger.db") as ledger:
        assert ledger.releases() == ()
    assert {entry.name for entry in folder.iterdir()} <= {
        *("records.parquet", "records.csv", "ledger.db", "visits.toml"),
        "out",
    }
    assert not list(folder.glob("out/*"))


@pytest.mark.usefixtures("classic_only", "folder")
def test_workers_of_another_python_are_named_before_anything_is_charged(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Path("bin/python3").absolute()
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 7\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    Path("visits.toml").write_text(CONFIGURATION.format(**RIGHT), encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        main(["run", "visits.toml"])
    said = capfd.readouterr().err
    assert left.value.code == 2, said
    assert "cannot run a Python function" in said
    assert "PYSPARK_PYTHON" in said
    with Ledger("sqlite:///ledger.db") as ledger:
        assert ledger.releases() == ()
