"""Differentially private histograms on Spark whose privacy budget shrinks as a group grows.

Where to look: ``spark_dphist.mechanisms`` holds the noise and its calibration (numpy and scipy
only), ``spark_dphist.accounting`` what a budget means and how budgets add up,
``spark_dphist.spark`` the count and noise stages, ``spark_dphist.release`` one release from
start to end, and ``spark_dphist.audit`` its audit table.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - shipped to executors, it is never installed by pip
    raise ImportError(
        f"spark_dphist needs Python 3.11 or newer, got {sys.version.split()[0]} "
        f"({sys.executable}). Use a newer one, and point PYSPARK_PYTHON at it for executors."
    )

__version__ = "0.1.0"
