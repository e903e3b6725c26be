"""The encoding of group keys, and which columns can be group keys at all."""

from __future__ import annotations

import datetime
import hashlib
import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from key_encoding import decode, encode
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.audit import AUDIT_COLUMNS
from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.group_key import (
    CONFIDENTIAL_COLUMNS,
    PUBLISHED_COLUMNS,
    encoded_group_key,
    group_digest,
    key_fields,
    quoted,
)

UTC = datetime.UTC
FIELDS = [
    T.StructField("tiny", T.ByteType()),
    T.StructField("long", T.LongType()),
    T.StructField("first", T.StringType()),
    T.StructField("second", T.StringType()),
    T.StructField("flag", T.BooleanType()),
    T.StructField("day", T.DateType()),
    T.StructField("instant", T.TimestampType()),
    T.StructField("wall", T.TimestampNTZType()),
    T.StructField("money", T.DecimalType(38, 10)),
    T.StructField("whole", T.DecimalType(5, 0)),
    T.StructField("fraction", T.DecimalType(38, 38)),
    T.StructField("raw", T.BinaryType()),
]

fragments = st.sampled_from(
    [*'N;:,012-\0\n`"\\ é\U0001d11e\u0301', "", "s1:", "s0:", "i1:1", "v1;", "m2;", "null"]
)
adversarial_text = st.lists(fragments, max_size=4).map("".join)
decimals = {
    "money": st.decimals(-(10**27), 10**27, allow_nan=False, places=10),
    "whole": st.integers(-99999, 99999).map(Decimal),
    "fraction": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-38")),
}
instants = st.datetimes(
    datetime.datetime(1800, 1, 1), datetime.datetime(9000, 1, 1), timezones=st.just(UTC)
)
values = [
    st.integers(-128, 127),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    adversarial_text,
    adversarial_text,
    st.booleans(),
    st.dates(),
    instants,
    st.datetimes(),
    decimals["money"],
    decimals["whole"],
    decimals["fraction"],
    st.binary(max_size=3),
]
keys = st.tuples(*[st.none() | value for value in values])


def rows_of(spark: SparkSession, fields: Sequence[T.StructField], rows: Sequence[Any]) -> DataFrame:
    numbered = [T.StructField("position", T.IntegerType()), *fields]
    return spark.createDataFrame(
        [(position, *row) for position, row in enumerate(rows)], T.StructType(numbered)
    )


def encodings(
    spark: SparkSession, fields: Sequence[T.StructField], rows: Sequence[Any]
) -> list[bytes]:
    frame = rows_of(spark, fields, rows).select("position", encoded_group_key(fields).alias("key"))
    return [row.key.encode() for row in sorted(frame.collect())]


@given(rows=st.lists(keys, min_size=50, max_size=300))
@hypothesis_settings(max_examples=5, derandomize=True, phases=[Phase.generate], database=None)
def test_an_encoded_key_can_be_decoded_so_no_two_keys_share_an_encoding(
    spark: SparkSession, rows: list[tuple[Any, ...]]
) -> None:
    got = encodings(spark, FIELDS, rows)
    assert [decode(each) for each in got] == rows
    assert got == [encode(FIELDS, row) for row in rows]


@given(pair=st.tuples(keys, keys))
@hypothesis_settings(max_examples=500)
def test_the_oracle_itself_is_inverted_by_decoding(pair: tuple[Any, Any]) -> None:
    first, second = pair
    assert decode(encode(FIELDS, first)) == first
    assert (encode(FIELDS, first) == encode(FIELDS, second)) == (first == second)


def test_strings_that_imitate_the_encoding_all_have_digests_of_their_own(
    spark: SparkSession,
) -> None:
    fields = [T.StructField(name, T.StringType()) for name in ("a", "b", "c")]
    texts = [None, "", "N", "NN", "s1:", "s1:N", "s0:", "1", "1:s", "s3:abc", "v1;3;", "\0", "é"]
    rows = list(itertools.product(texts, repeat=3))
    digests = rows_of(spark, fields, rows).select(group_digest(fields).alias("digest")).collect()
    assert len({bytes(row.digest) for row in digests}) == len(rows) == 13**3


PINNED = [
    (
        (None,) * 12,
        b"v1;12;NNNNNNNNNNNN",
    ),
    (
        (
            -7,
            9223372036854775807,
            "",
            "Zürich;N",
            True,
            datetime.date(2013, 1, 31),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime.datetime(2024, 2, 29, 12, 30, 0, 120000),
            Decimal("-1234567.5"),
            Decimal("-12345"),
            Decimal("0.00000000000000000000000000000000000001"),
            b"\x00\xff",
        ),
        b"v1;12;i2:-7i19:9223372036854775807s0:s9:Z\xc3\xbcrich;Nb1:1d5:15736t2:-1"
        b"n22:2024-02-29 12:30:00.12m10;21:-1,234,567.5000000000m0;7:-12,345"
        b"m38;40:0.00000000000000000000000000000000000001x4:00FF",
    ),
    (
        (
            0,
            0,
            "N",
            "\U0001d11e",
            False,
            datetime.date(1, 1, 1),
            datetime.datetime(2024, 11, 3, 9, 30, tzinfo=UTC),
            datetime.datetime(2024, 3, 10, 2, 30),
            Decimal(0),
            Decimal(7),
            Decimal("-0.5"),
            b"",
        ),
        b"v1;12;i1:0i1:0s1:Ns4:\xf0\x9d\x84\x9eb1:0d7:-719162t16:1730626200000000"
        b"n19:2024-03-10 02:30:00m10;12:0.0000000000m0;1:7"
        b"m38;41:-0.50000000000000000000000000000000000000x0:",
    ),
]


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kathmandu"])
def test_the_bytes_are_the_same_in_every_time_zone_and_with_or_without_ansi(
    spark: SparkSession, settings: Any, zone: str, ansi: str
) -> None:
    with settings({"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}):
        assert encodings(spark, FIELDS, [key for key, _ in PINNED]) == [text for _, text in PINNED]
        digests = rows_of(spark, FIELDS, [key for key, _ in PINNED]).select(
            "position", group_digest(FIELDS).alias("digest")
        )
        assert [bytes(row.digest) for row in sorted(digests.collect())] == [
            hashlib.sha256(text).digest() for _, text in PINNED
        ]


def test_integer_columns_of_any_width_encode_alike(spark: SparkSession) -> None:
    widths = (T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType())
    assert {encodings(spark, [T.StructField("n", kind)], [(-128,)])[0] for kind in widths} == {
        b"v1;1;i4:-128"
    }


def test_the_scale_of_a_decimal_is_part_of_its_key(spark: SparkSession) -> None:
    tenths = [T.StructField("d", T.DecimalType(5, 1))]
    hundredths = [T.StructField("d", T.DecimalType(5, 2))]
    assert encodings(spark, tenths, [(Decimal("1.5"),)]) == [b"v1;1;m1;3:1.5"]
    assert encodings(spark, hundredths, [(Decimal("1.5"),)]) == [b"v1;1;m2;4:1.50"]


@pytest.mark.parametrize("name", ["a.b", "a`b", "select", "with space", "ünï", "a,b;c", "%", "'"])
def test_column_names_with_dots_backticks_and_the_like_are_taken_as_they_are(
    spark: SparkSession, name: str
) -> None:
    fields = [T.StructField(name, T.StringType())]
    assert encodings(spark, fields, [("x",)]) == [b"v1;1;s1:x"]


def unsupported_types() -> list[Any]:
    kinds = {
        "float": (T.FloatType(), "cast to decimal"),
        "double": (T.DoubleType(), "cast to decimal"),
        "array": (T.ArrayType(T.StringType()), "explode it"),
        "map": (T.MapType(T.StringType(), T.StringType()), "select its entries as columns"),
        "struct": (
            T.StructType([T.StructField("x", T.StringType())]),
            "select its fields as columns",
        ),
        "interval": (T.DayTimeIntervalType(), "Cast it to one of"),
        "void": (T.NullType(), "Cast it to one of"),
    }
    if hasattr(T, "VariantType"):
        kinds["variant"] = (T.VariantType(), "Cast it to one of")
        kinds["collated string"] = (T.StringType("UTF8_LCASE"), "COLLATE UTF8_BINARY")
        kinds["trimming string"] = (T.StringType("UTF8_BINARY_RTRIM"), "COLLATE UTF8_BINARY")
        kinds["collated by ICU"] = (T.StringType("UNICODE_CI"), "COLLATE UTF8_BINARY")
    if hasattr(T, "TimeType"):
        kinds["time"] = (T.TimeType(), "Cast it to one of")
    return [pytest.param(kind, mend, id=name) for name, (kind, mend) in kinds.items()]


@pytest.mark.parametrize(("kind", "mend"), unsupported_types())
def test_a_type_that_cannot_be_a_key_is_refused_with_its_column_and_the_mend(
    kind: T.DataType, mend: str
) -> None:
    schema = T.StructType([T.StructField("ok", T.LongType()), T.StructField("odd", kind)])
    assert key_fields(schema, ["ok"], "the input")
    with pytest.raises(ConfigurationError, match="'odd'") as refused:
        key_fields(schema, ["ok", "odd"], "the input")
    assert mend in str(refused.value)


def test_decimals_of_negative_scale_are_refused_as_their_text_would_be_null() -> None:
    schema = T.StructType([T.StructField("thousands", T.DecimalType(5, -3))])
    with pytest.raises(ConfigurationError, match=r"'thousands'.*negative scale"):
        key_fields(schema, ["thousands"], "the input")


def test_an_unknown_column_is_refused_with_a_suggestion() -> None:
    schema = T.StructType([T.StructField("carrier", T.StringType())])
    with pytest.raises(ConfigurationError, match=r"'carier' is not .* mean 'carrier'"):
        key_fields(schema, ["carier"], "the input")


@pytest.mark.parametrize(
    "name",
    [
        *PUBLISHED_COLUMNS,
        *AUDIT_COLUMNS,
        *CONFIDENTIAL_COLUMNS,
        "LOWER",
        "Rho_Upper",
        "__dphist_weight",
        "__DPHIST_x",
    ],
)
def test_names_that_release_and_audit_use_themselves_are_refused(name: str) -> None:
    schema = T.StructType([T.StructField(name, T.StringType())])
    with pytest.raises(ConfigurationError, match="Rename the column"):
        key_fields(schema, [name], "the input")


def test_a_column_named_twice_is_refused() -> None:
    schema = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.LongType())])
    with pytest.raises(ConfigurationError, match="'a' is named twice"):
        key_fields(schema, ["a", "b", "a"], "the input")


def test_a_table_with_two_columns_of_the_name_is_refused() -> None:
    schema = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.LongType())])
    with pytest.raises(ConfigurationError, match="two columns named 'a'"):
        key_fields(schema, ["a"], "the input")


def test_no_group_column_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one column"):
        key_fields(T.StructType([]), [], "the input")


def test_a_collated_column_of_a_real_table_is_recognised(spark: SparkSession) -> None:
    if not hasattr(T, "VariantType"):
        pytest.skip("Spark 3.5 has no collations")
    frame = spark.range(1).select(F.expr("'x' COLLATE UNICODE_CI").alias("name"))
    with pytest.raises(ConfigurationError, match="collation 'UNICODE_CI'"):
        key_fields(frame.schema, ["name"], "the input")
    mended = frame.select(F.expr("CAST(name AS STRING COLLATE UTF8_BINARY)").alias("name"))
    assert key_fields(mended.schema, ["name"], "the input")


def test_char_and_varchar_columns_are_strings_to_spark_and_stay_supported(
    spark: SparkSession,
) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW words AS SELECT 'ab' AS word")
    frame = spark.sql("SELECT CAST(word AS VARCHAR(5)) AS word FROM words")
    fields = key_fields(frame.schema, ["word"], "the input")
    encoded = frame.select(encoded_group_key(fields).alias("key")).collect()
    assert encoded[0].key == "v1;1;s2:ab"
    assert frame.select(quoted("word")).collect()[0].word == "ab"
