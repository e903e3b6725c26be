"""Spark's errors by name alone: their messages may quote records."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:  # A client of Spark Connect alone has no py4j.
    SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    # pyspark 3.5 does not translate what fails inside a job.
    SPARK_ERRORS = (PySparkException, Py4JError)


def first_sentence_of(error: BaseException) -> str:
    """Return the first sentence of what Spark says, without classes of Java.

    Only where no record was read: of schemas, of public tables.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What Py4J says of each error; the error of Java follows, after its class.
    if lines and lines[0].startswith("An error occurred while calling"):
        lines = [re.sub(r"^: (?:[\w$]+\.)*[\w$]+: ", "", line) for line in lines[1:]]
    sentence = lines[0].split("SQLSTATE")[0].split(". ")[0].strip(" .") if lines else ""
    return sentence or condition_of(error)


def condition_of(error: BaseException) -> str:
    """Name an error without its message."""
    condition = None
    if isinstance(error, PySparkException):
        get_condition = getattr(error, "getCondition", error.getErrorClass)
        condition = get_condition()
    return condition or type(error).__name__
