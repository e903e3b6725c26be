"""Spark's errors by name alone: their messages may quote records."""

from __future__ import annotations

from pyspark.errors import PySparkException


def condition_of(error: BaseException) -> str:
    """Name an error without its message."""
    condition = None
    if isinstance(error, PySparkException):
        get_condition = getattr(error, "getCondition", error.getErrorClass)
        condition = get_condition()
    return condition or type(error).__name__
