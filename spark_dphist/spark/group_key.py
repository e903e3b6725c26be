"""Which columns can be group keys, and their injective encoding.

The encoding is ``v1;<columns>;`` and then, for each column, ``N`` for NULL or a tag, the length in
bytes, ``:`` and the value as text. Two different keys never share an encoding, and it does not
depend on the session's time zone, on ANSI mode or on the Spark version. (Hashing columns one after
the other, joining them with a separator or writing them as JSON do not have these properties.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.errors import ConfigurationError, did_you_mean

RESERVED_PREFIX = "__dphist_"
PUBLISHED_COLUMNS = ("noisy_count", "lower", "upper")
CONFIDENTIAL_COLUMNS = ("confidential_true_count", "confidential_rho")
# The audit adds the last ones.
_RESERVED = (
    *PUBLISHED_COLUMNS,
    *CONFIDENTIAL_COLUMNS,
    "rho_at_noisy_count",
    "rho_lower",
    "rho_upper",
    "expected_bias",
)

_MENDS: dict[type[T.DataType], str] = {
    T.FloatType: "Equal floats need not be the same group: cast to decimal, or bin it to integers.",
    T.DoubleType: "Equal doubles need not be the same group: cast to decimal, or bin to integers.",
    T.ArrayType: "Group by single values: explode it, or make a string of it.",
    T.MapType: "Group by single values: select its entries as columns.",
    T.StructType: "Group by single values: select its fields as columns.",
}
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_KNOWN = "integer, boolean, date, string, decimal, timestamp and binary columns"


def quoted(name: str) -> Column:
    """Return the column of exactly this name, dots and backticks in it included."""
    return F.col("`" + name.replace("`", "``") + "`")


def key_fields(schema: T.StructType, columns: Sequence[str], source: str) -> list[T.StructField]:
    """Return the fields of the group columns after checking that each can be a group key.

    Parameters
    ----------
    schema
        Schema of the table that is counted.
    columns
        Names of the group columns.
    source
        How to call that table in an error.

    Raises
    ------
    ConfigurationError
        If there is no column, a column is unknown, repeated or reserved, or its type is not
        supported; the message names the column and the mend.
    """
    if not columns:
        raise ConfigurationError("group columns are missing: name at least one column to group by")
    repeated = {name for name in columns if list(columns).count(name) > 1}
    if repeated:
        raise ConfigurationError(f"group column {sorted(repeated)[0]!r} is named twice")
    names = [field.name for field in schema.fields]
    for name in columns:
        if names.count(name) == 0:
            raise ConfigurationError(
                f"group column {name!r} is not a column of {source}. {did_you_mean(name, names)}"
            )
        if names.count(name) > 1:
            raise ConfigurationError(f"{source} has two columns named {name!r}: rename one of them")
        if name.lower() in _RESERVED or name.lower().startswith(RESERVED_PREFIX):
            raise ConfigurationError(
                f"group column {name!r} has a name the release itself uses. Rename the column."
            )
    fields = [schema[name] for name in columns]
    for field in fields:
        check_key_type(field)
    return fields


def check_key_type(field: T.StructField) -> None:
    """Refuse a type that cannot be a group key, with the mend."""
    kind = field.dataType
    if isinstance(kind, T.StringType):
        collation = getattr(kind, "collation", None)
        if collation not in (None, "UTF8_BINARY"):
            raise ConfigurationError(
                f"group column {field.name!r} is a string with collation {collation!r}, under "
                "which different strings are equal. Cast it: "
                f"CAST({field.name} AS STRING COLLATE UTF8_BINARY), or normalise it first."
            )
        return
    if isinstance(kind, T.DecimalType) and kind.scale < 0:
        raise ConfigurationError(
            f"group column {field.name!r} is a decimal of negative scale ({kind.scale}), whose "
            f"text Spark leaves NULL. Cast it to decimal({kind.precision - kind.scale}, 0)."
        )
    if _encoder(kind) is not None:
        return
    mend = next((text for known, text in _MENDS.items() if isinstance(kind, known)), None)
    raise ConfigurationError(
        f"group column {field.name!r} has type {kind.simpleString()}, which cannot be a group "
        f"key. {mend or f'Cast it to one of: {_KNOWN}.'}"
    )


def group_digest(fields: Sequence[T.StructField]) -> Column:
    """Return the SHA-256 of the encoded group key, a binary column of 32 bytes."""
    return F.unhex(F.sha2(encoded_group_key(fields).cast("binary"), 256))


def encoded_group_key(fields: Sequence[T.StructField]) -> Column:
    """Return the injective encoding of the group key, a string column."""
    parts = [F.lit(f"v1;{len(fields)};")]
    for field in fields:
        encoder = _encoder(field.dataType)
        assert encoder is not None, "key_fields has checked the types"  # noqa: S101
        tag, text_of = encoder
        text = text_of(quoted(field.name))
        size = F.octet_length(text).cast("string")
        parts.append(F.coalesce(F.concat(F.lit(tag), size, F.lit(":"), text), F.lit("N")))
    return F.concat(*parts)


def _encoder(kind: T.DataType) -> tuple[str, Callable[[Column], Column]] | None:
    """Return the tag of a type and the text of its values, or None for an unsupported type."""
    if isinstance(kind, _INTEGERS):
        return "i", lambda column: column.cast("bigint").cast("string")
    if isinstance(kind, T.BooleanType):
        return "b", lambda column: column.cast("int").cast("string")
    if isinstance(kind, T.DateType):
        return "d", lambda column: F.unix_date(column).cast("string")
    if isinstance(kind, T.TimestampType):
        return "t", lambda column: F.unix_micros(column).cast("string")
    if isinstance(kind, T.TimestampNTZType):
        return "n", lambda column: column.cast("string")
    if isinstance(kind, T.DecimalType):
        # CAST to string writes an exponent or not depending on ANSI mode; format_number never.
        scale = kind.scale
        return f"m{scale};", lambda column: F.format_number(column, scale)
    if isinstance(kind, T.BinaryType):
        return "x", F.hex
    if type(kind) is T.StringType:
        return "s", lambda column: column
    return None
