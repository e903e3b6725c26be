"""Plans as text, on classic sessions and on Connect alike."""

from __future__ import annotations

import contextlib
import io

from pyspark.sql import DataFrame


def explained(frame: DataFrame, mode: str = "formatted") -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain(mode=mode)
    return printed.getvalue()
