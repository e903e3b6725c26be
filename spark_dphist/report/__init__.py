"""The report of a release: one HTML file without scripts, made from its public tables alone.

``read_release`` finds the tables, ``render_report`` makes the page; both need no Spark.
"""

from spark_dphist.report.page import render_report
from spark_dphist.report.source import PublishedRelease, public_release, read_release

__all__ = ["PublishedRelease", "public_release", "read_release", "render_report"]
