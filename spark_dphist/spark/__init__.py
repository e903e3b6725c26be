"""The Spark stages: key set, group counts, noise, storage. DataFrame API only, so Connect works."""

from __future__ import annotations

import re

import pyspark

from spark_dphist.errors import ConfigurationError

_LEAST = (3, 5)


def check_pyspark(version: str) -> None:
    """Refuse a pyspark that lacks what the stages need, before an import fails for it.

    Raises
    ------
    ConfigurationError
        With both versions and the mend.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise ConfigurationError(
            f"pyspark {version} is too old: spark_dphist needs {least} or newer. Install it with: "
            f"pip install 'pyspark>={least}'. On a cluster, choose a runtime with Spark {least} or "
            "newer."
        )


check_pyspark(pyspark.__version__)
