"""The release key: nowhere to be found in plans, logs and the event log."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plans import explained
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from releases import FIELDS, KEYS, MECHANISM, confidential_records, request_for
from waiting import wait_for

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.release import run_release
from spark_dphist.spark.bounding import bound_contributions, unit_field
from spark_dphist.spark.counts import count_groups
from spark_dphist.spark.noise import add_noise
from spark_dphist.streams import ReleaseKey

SECRET = hashlib.sha256(b"a secret that would be recognised").digest()
KEY = ReleaseKey.fixed_for_tests(SECRET)


def spellings(secret: bytes) -> Iterator[bytes]:
    """Every way in which the secret is likely to be written down, in part at least."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield secret.hex(" ").encode()
    yield repr(secret)[2:-1].encode()
    yield ", ".join(str(byte) for byte in secret).encode()
    yield ",".join(str(byte) for byte in secret).encode()
    yield str(int.from_bytes(secret, "big")).encode()
    yield str(int.from_bytes(secret, "little")).encode()
    # Protocol buffers as text.
    yield "".join(f"\\{byte:03o}" for byte in secret).encode()[:16]
    yield "".join(chr(b) if 32 < b < 127 else f"\\{b:03o}" for b in secret)[:24].encode()
    # Base64 of something that contains the secret, at each of the three alignments.
    for offset in range(3):
        padded = base64.b64encode(bytes(offset) + secret + bytes(3))
        inner = padded[4 * (offset > 0) : 4 * ((offset + len(secret)) // 3)]
        yield inner
        yield inner.translate(bytes.maketrans(b"+/", b"-_"))


def found_in(text: bytes, secret: bytes = SECRET) -> list[bytes]:
    # Log lines may break long values.
    unbroken = text.replace(b"\\n", b"").replace(b"\n", b"")
    return [each for each in spellings(secret) if each in text or each in unbroken]


def few(spark: SparkSession) -> DataFrame:
    return confidential_records(spark, {("AA", 1): 300, (None, 2): 40})


def everything_logged(spark: SparkSession, event_log_directory: Path, driver_log: Path) -> bytes:
    """Return both logs, once the listener that writes the event log has come to this moment."""
    mark = f"logged until {time.monotonic_ns()}"
    spark.range(1).select(F.lit(mark)).collect()

    def events() -> bytes | None:
        files = [path for path in event_log_directory.rglob("*") if path.is_file()]
        written = b"".join(path.read_bytes() for path in files)
        return written if mark.encode() in written else None

    return wait_for(events, "this moment in the event log") + driver_log.read_bytes()


@pytest.mark.parametrize("hidden_as", [bytes, bytes.hex, base64.b64encode, repr, list])
def test_the_search_finds_a_secret_that_is_there(hidden_as: Any) -> None:
    written = hidden_as(SECRET)
    text = written if isinstance(written, bytes) else str(written).encode()
    assert found_in(b"noise " + text + b" noise")
    assert found_in(base64.b64encode(b"xy" + SECRET + b"z"))
    assert not found_in(b"noise " * 100)


def test_the_key_is_shown_by_neither_repr_nor_str() -> None:
    assert not found_in((repr(KEY) + str(KEY)).encode())


def test_the_key_is_in_no_plan(spark: SparkSession) -> None:
    counts = count_groups(confidential_records(spark), KEYS.to_spark(spark, FIELDS), FIELDS, 1)
    noisy = add_noise(counts, FIELDS, MECHANISM, KEY)
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        assert not found_in(explained(noisy, mode).encode())


def test_the_key_is_in_no_plan_that_bounds_contributions(spark: SparkSession) -> None:
    unit = PrivacyUnit(column="passenger", max_records=2)
    records = confidential_records(spark)
    identifier = unit_field(records.schema, unit, "the input")
    assert identifier is not None
    bounded = bound_contributions(records, FIELDS, unit, identifier, KEY)
    assert not found_in(explained(bounded, "extended").encode())


def test_the_key_is_in_no_log_and_no_event_log(
    spark: SparkSession,
    tmp_path: Path,
    event_log_directory: Path,
    driver_log: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spark.range(1).select(F.lit("this literal is logged")).collect()
    unit = PrivacyUnit(column="passenger", max_records=2)
    request = request_for(spark, tmp_path, records=few(spark), privacy_unit=unit)
    run_release(spark, request, key=KEY)
    logged = everything_logged(spark, event_log_directory, driver_log)
    assert b"this literal is logged" in logged
    assert not found_in(logged)
    printed = capfd.readouterr()
    assert not found_in((printed.out + printed.err).encode())


def test_a_literal_in_an_expression_would_be_in_the_event_log(
    spark: SparkSession, event_log_directory: Path, driver_log: Path
) -> None:
    other = hashlib.sha256(b"not the release key").digest()
    spark.range(2).select(F.lit(other.hex()).alias("x"), "id").distinct().collect()
    assert found_in(everything_logged(spark, event_log_directory, driver_log), other)


def test_the_key_is_not_logged_at_debug_level_either(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What py4j sends to the JVM, pickled functions included, it logs at debug level."""
    unit = PrivacyUnit(column="passenger", max_records=2)
    request = request_for(spark, tmp_path, records=few(spark), privacy_unit=unit)
    with caplog.at_level(logging.DEBUG):
        run_release(spark, request, key=KEY)
        logging.getLogger("py4j.clientserver").debug("afterwards as before")
    assert "afterwards as before" in caplog.text
    assert not found_in(caplog.text.encode())


CONNECT_DEBUG = """
from pathlib import Path
from pyspark.sql import SparkSession
from releases import request_for
from test_release_key_secrecy import KEY, few
from spark_dphist.release import run_release
spark = SparkSession.builder.remote("local[1]").getOrCreate()
run_release(spark, request_for(spark, Path({directory!r}), records=few(spark)), key=KEY)
print("released")
"""


@pytest.mark.usefixtures("same_on_connect")
def test_the_client_of_spark_connect_does_not_log_the_key_at_debug_level(tmp_path: Path) -> None:
    pytest.importorskip("grpc_status")
    pytest.importorskip("zstandard", reason="Spark Connect is not installed")
    import pyspark

    if pyspark.__version__.startswith("3."):
        pytest.skip("pyspark 3.5 has no Connect server of its own")
    script = CONNECT_DEBUG.format(directory=str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            "SPARK_CONNECT_LOG_LEVEL": "debug",
            # Any free port, beside the session of these tests.
            "SPARK_TESTING": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert b"released" in ran.stdout, ran.stderr[-2000:]
    assert b"ExecuteAndFetchAsIterator. Request:" in ran.stderr
    assert not found_in(ran.stdout + ran.stderr)
