"""Packages that only some commands need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_dphist.errors import ConfigurationError


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Turn a missing package into a sentence that says how to get it.

    Parameters
    ----------
    what
        What needs it, as the beginning of a sentence.
    extra
        The extra of this package that installs it.

    Raises
    ------
    ConfigurationError
        If an import within the block does not find its package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").split(".")[0]
        if package == __package__:
            raise
        # Where Spark is installed there is a pyspark already, and a second would cover it.
        there = ", or run it where Spark's own is (spark-submit, Databricks)"
        raise ConfigurationError(
            f"{what} needs {package}, which is not installed: pip install 'spark-dphist[{extra}]'"
            f"{there if extra == 'spark' else ''}"
        ) from None
