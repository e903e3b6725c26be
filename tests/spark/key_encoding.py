"""A second implementation of the group key encoding, and its inverse: the oracle for the first."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PART = re.compile(rb"N|(?P<tag>[ibdtnxs]|m\d+;)(?P<size>\d+):")


def encode(fields: Sequence[T.StructField], key: Sequence[Any]) -> bytes:
    parts = [f"v1;{len(fields)};".encode()]
    for field, value in zip(fields, key, strict=True):
        if value is None:
            parts.append(b"N")
            continue
        tag, text = _tag_and_text(field.dataType, value)
        parts.append(f"{tag}{len(text)}:".encode() + text)
    return b"".join(parts)


def decode(encoded: bytes) -> tuple[Any, ...]:
    """Return the key; that this function exists is why two keys never share an encoding."""
    head = re.match(rb"v1;(\d+);", encoded)
    assert head is not None
    position, key = head.end(), []
    for _ in range(int(head.group(1))):
        part = _PART.match(encoded, position)
        assert part is not None
        position = part.end()
        if part.group("tag") is None:
            key.append(None)
            continue
        size = int(part.group("size"))
        text = encoded[position : position + size]
        assert len(text) == size
        position += size
        key.append(_value(part.group("tag").decode(), text))
    assert position == len(encoded)
    return tuple(key)


def _tag_and_text(kind: T.DataType, value: Any) -> tuple[str, bytes]:
    match kind:
        case T.BooleanType():
            return "b", b"1" if value else b"0"
        case T.DateType():
            return "d", b"%d" % (value.toordinal() - _EPOCH.toordinal())
        case T.TimestampType():
            return "t", b"%d" % ((value - _EPOCH) // datetime.timedelta(microseconds=1))
        case T.TimestampNTZType():
            text = value.isoformat(sep=" ")
            return "n", (text.rstrip("0") if "." in text else text).encode()
        case T.DecimalType():
            return f"m{kind.scale};", f"{value:,.{kind.scale}f}".encode()
        case T.BinaryType():
            return "x", value.hex().upper().encode()
        case T.StringType():
            return "s", value.encode()
    return "i", b"%d" % value


def _value(tag: str, text: bytes) -> Any:
    match tag:
        case "i":
            return int(text)
        case "b":
            return {b"0": False, b"1": True}[text]
        case "d":
            return datetime.date.fromordinal(int(text) + _EPOCH.toordinal())
        case "t":
            return _EPOCH + datetime.timedelta(microseconds=int(text))
        case "n":
            return datetime.datetime.fromisoformat(text.decode())
        case "x":
            return bytes.fromhex(text.decode())
        case "s":
            return text.decode()
    return Decimal(text.decode().replace(",", ""))
