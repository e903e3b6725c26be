"""Spark's errors by name alone: their messages may quote records."""

from __future__ import annotations

from pyspark.errors import PySparkException

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:  # A client of Spark Connect alone has no py4j.
    SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    # pyspark 3.5 does not translate what fails inside a job.
    SPARK_ERRORS = (PySparkException, Py4JError)


def condition_of(error: BaseException) -> str:
    """Name an error without its message."""
    condition = None
    if isinstance(error, PySparkException):
        get_condition = getattr(error, "getCondition", error.getErrorClass)
        condition = get_condition()
    return condition or type(error).__name__
