"""Keep keys and records out of Python's logs while Spark works on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# They log every command or plan they send, pickled functions included, at debug or info level.
_CLIENTS = ("py4j", "pyspark.sql.connect")
# They print the messages of Spark's errors, which may quote records, whoever catches the error.
_QUOTING = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


@contextmanager
def unlogged() -> Iterator[None]:
    """Let the clients of Spark log nothing but warnings inside the ``with`` block.

    What they send holds the release key, and the errors they get may quote records.
    """
    clients = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and name.startswith(_CLIENTS)
    ]
    with ExitStack() as stack:
        for logger in clients:
            stack.enter_context(_filtered(logger, logging.WARNING))
        for logger in _quoting_loggers():
            stack.enter_context(_filtered(logger, logging.CRITICAL + 1))
        yield


@contextmanager
def _filtered(logger: logging.Logger, level: int) -> Iterator[None]:
    def is_serious(record: logging.LogRecord) -> bool:
        return record.levelno >= level

    logger.addFilter(is_serious)
    try:
        yield
    finally:
        logger.removeFilter(is_serious)


def _quoting_loggers() -> list[logging.Logger]:
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # pyspark 3.5 prints no error by itself
        return []
    return [PySparkLogger.getLogger(name) for name in _QUOTING]
