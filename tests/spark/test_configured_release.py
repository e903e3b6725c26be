"""From a TOML file to a release, through the same functions as the command line and the jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from releases import KEY, KEY_SET_SIZE, confidential_records, entries

from spark_dphist.cli import main
from spark_dphist.config import load_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.from_config import request_from
from spark_dphist.release import Release, run_release

GROUPS = """
columns = ["carrier", "month"]
[groups.keys.product]
carrier = { values = ["AA", "BB", ""], include_null = true }
month = { values = [1, 2], include_null = true }
"""


def configuration(
    directory: Path,
    *,
    source: str | None = None,
    groups: str = GROUPS,
    output: str | None = None,
    more: str = "",
) -> Path:
    source = f'path = "{directory}/records"' if source is None else source
    output = f'path = "{directory}/out/counts"' if output is None else output
    file = directory / "release.toml"
    file.write_text(
        f'name = "test"\n[input]\n{source}\n[groups]\n{groups}\n'
        f"[mechanism]\nrelative_error = 0.3\nfloor = 20\n[output]\n{output}\n{more}\n"
    )
    return file


@pytest.fixture
def stored(spark: SparkSession, tmp_path: Path) -> Path:
    confidential_records(spark, {("AA", 1): 300, (None, 2): 40}).write.parquet(
        str(tmp_path / "records")
    )
    return tmp_path


def released(spark: SparkSession, file: Path) -> Release:
    return run_release(spark, request_from(spark, load_configuration(file)), key=KEY)


def test_a_product_with_null_is_released(spark: SparkSession, stored: Path) -> None:
    release = released(spark, configuration(stored))
    assert release.counts.count() == KEY_SET_SIZE
    assert release.audit.header.input == f"parquet {stored}/records"
    assert release.audit.header.release_id.startswith("test-")
    assert release.audit.header.relative_error == 0.3
    assert entries(stored / "out") == {"counts", "counts_audit_groups", "counts_audit_header"}


def test_tuples_files_rounding_and_a_confidential_audit_are_taken_over(
    spark: SparkSession, stored: Path
) -> None:
    groups = 'columns = ["month", "carrier"]\nkeys.tuples = [[1, "AA"], [2, "BB"], [1, "AA"]]'
    output = f'path = "{stored}/out/counts"\nfiles = 2\nrounding = "none"\nconfidence = 0.5'
    secret = f'[confidential_audit]\npath = "{stored}/vault"'
    release = released(spark, configuration(stored, groups=groups, output=output, more=secret))
    assert {(row.month, row.carrier) for row in release.counts.collect()} == {(1, "AA"), (2, "BB")}
    assert dict(release.counts.dtypes)["noisy_count"] == "double"
    assert release.audit.header.confidence == 0.5
    truth = {
        row.carrier: row.confidential_true_count
        for row in spark.read.parquet(str(stored / "vault")).collect()
    }
    assert truth == {"AA": 300, "BB": 0}


def test_tables_are_read_and_written_by_name(spark: SparkSession, stored: Path) -> None:
    tables = ["configured_records", "configured_keys"]
    written = ["configured_counts" + end for end in ("", "_audit_groups", "_audit_header")]
    spark.read.parquet(str(stored / "records")).write.saveAsTable("configured_records")
    spark.createDataFrame([("AA", 1)], "carrier string, month int").write.saveAsTable(
        "configured_keys"
    )
    try:
        file = configuration(
            stored,
            source='table = "configured_records"',
            groups='columns = ["carrier", "month"]\nkeys.table = "configured_keys"',
            output='table = "configured_counts"',
        )
        release = released(spark, file)
        assert release.counts.count() == 1
        assert release.audit.header.input == "table configured_records"
        assert [spark.table(name).count() for name in written] == [1, 1, 1]
    finally:
        for name in [*tables, *written]:
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_dates_and_timestamps_of_toml_are_keys(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(
        "SELECT DATE'2013-01-31' AS day, TIMESTAMP'2013-01-31 05:00:00Z' AS at"
    ).write.parquet(str(tmp_path / "records"))
    groups = (
        'columns = ["day", "at"]\n[groups.keys.product]\nday = [2013-01-31, "2013-02-01"]\n'
        "at = [2013-01-31T00:00:00-05:00]"
    )
    secret = f'[confidential_audit]\npath = "{tmp_path}/vault"'
    released(spark, configuration(tmp_path, groups=groups, more=secret))
    truth = spark.read.parquet(str(tmp_path / "vault")).collect()
    assert {row.day.isoformat(): row.confidential_true_count for row in truth} == {
        "2013-01-31": 1,
        "2013-02-01": 0,
    }


def test_an_input_or_a_key_set_that_is_not_there_is_refused_by_name(
    spark: SparkSession, stored: Path
) -> None:
    missing = configuration(stored, source=f'path = "{stored}/missing"')
    with pytest.raises(ConfigurationError, match=r"the input parquet .*missing cannot be read"):
        released(spark, missing)
    keys = 'columns = ["carrier"]\nkeys.table = "no_such_table"'
    with pytest.raises(ConfigurationError, match=r"the key set .*no_such_table.* cannot be read"):
        released(spark, configuration(stored, groups=keys))


def leave(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capfd.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def test_the_command_line_releases_once_and_refuses_to_overwrite(
    spark: SparkSession, stored: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = str(configuration(stored))
    code, out, _ = leave(capfd, "run", file, "--dry-run")
    assert (code, entries(stored / "out")) == (0, set())
    assert "no job was run" in out
    code, out, _ = leave(capfd, "run", file, "--show", "3")
    assert code == 0
    assert f"{stored}/out/counts" in out
    assert spark.read.parquet(f"{stored}/out/counts").count() == KEY_SET_SIZE
    code, _, err = leave(capfd, "run", file)
    assert code == 2
    assert "exists" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("place", ["the same", "a view of it"])
def test_the_command_line_warns_once_of_keys_from_the_confidential_data(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    records = spark.createDataFrame([("AA", 1)], "carrier string, month int")
    records.write.parquet(f"{tmp_path}/records")
    keys = f"{tmp_path}/records"
    if place == "a view of it":
        spark.read.parquet(keys).createOrReplaceTempView("found_keys")
    chosen = f'path = "{keys}"' if place == "the same" else 'table = "found_keys"'
    groups = f'columns = ["carrier", "month"]\nkeys = {{ {chosen} }}'
    code, out, err = leave(capfd, "run", str(configuration(tmp_path, groups=groups)), "--dry-run")
    assert code == 0
    assert err.count("Warning: The key set seems to have been taken from the confidential") == 1
    assert "The key set has 1 groups." in out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"groups": 'columns = ["carier"]\nkeys.product.carier = ["AA"]'},
            "Did you mean 'carrier'",
        ),
        ({"groups": 'columns = ["month"]\nkeys.product.month = ["one"]'}, "expected int"),
        ({"source": 'path = "/no/such/place"'}, "cannot be read"),
    ],
    ids=["unknown column", "wrong type", "no input"],
)
def test_the_command_line_exits_with_2_and_the_mend_for_a_wrong_request(
    spark: SparkSession,
    stored: Path,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, Any],
    says: str,
) -> None:
    assert spark.version
    for extra in ([], ["--dry-run"]):
        code, _, err = leave(capfd, "run", str(configuration(stored, **change)), *extra)
        assert code == 2
        assert says in err
        assert "Traceback" not in err
    assert entries(stored / "out") == set()


def test_a_plan_needs_neither_spark_nor_data(tmp_path: Path) -> None:
    file = configuration(tmp_path, source='path = "/no/such/place"')
    script = (
        "import sys\nsys.modules['pyspark'] = None\n"
        f"from spark_dphist.cli import main\nmain(['plan', {str(file)!r}])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Worst case" in ran.stdout
