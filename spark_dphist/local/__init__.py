"""The local model: each value is noised for itself, before anything is collected. No Spark here.

``responses`` draws the reports, ``estimate`` makes counts of them; docs/local-model.md has the
proofs. ``spark_dphist.local_collection`` is the way from a table to reports and estimates.
"""

from spark_dphist.local.estimate import Estimate, estimate_counts
from spark_dphist.local.responses import (
    LocalResponse,
    RandomisedResponse,
    UnaryEncoding,
    local_response,
)

__all__ = [
    "Estimate",
    "LocalResponse",
    "RandomisedResponse",
    "UnaryEncoding",
    "estimate_counts",
    "local_response",
]
