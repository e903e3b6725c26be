"""Keep from Python's logs what a client sends to Spark while a function that holds a key is in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

# They log every command or plan they send, pickled functions included, at debug or info level.
_CLIENTS = ("py4j", "pyspark.sql.connect")


@contextmanager
def unlogged() -> Iterator[None]:
    """Let the clients of Spark log nothing below a warning inside the ``with`` block."""

    def is_warning(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and name.startswith(_CLIENTS)
    ]
    for logger in loggers:
        logger.addFilter(is_warning)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_warning)
