"""Whether what stands in storage is what the ledger has as committed, before it is handed out."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_dphist.audit import AuditHeader
from spark_dphist.errors import ReleaseError
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.places import OutputTarget
from spark_dphist.spark.summary import summarised_by_spark

_RESTORE = "Restore it from a backup: making it again would spend the budget again."


def refuse_missing(
    spark: SparkSession, called: str, release_id: str, targets: Sequence[OutputTarget]
) -> None:
    """Refuse to hand out what is not all there, staged or published.

    Parameters
    ----------
    spark
        The session.
    called
        What an error calls it: ``release`` or ``collection``.
    release_id, targets
        Its id and places.

    Raises
    ------
    ReleaseError
        With the place where nothing is.
    """
    for target in targets:
        if not (target.is_staged(spark) or target.exists(spark)):
            raise ReleaseError(
                f"{called} {release_id!r} is committed, but nothing is at "
                f"{target.described!r} nor staged beside it. {_RESTORE}"
            )


def committed_header(
    spark: SparkSession,
    called: str,
    release_id: str,
    target: OutputTarget,
    committed_digest: object,
) -> AuditHeader:
    """Read the header of the audit, and check that it is the committed one.

    Parameters
    ----------
    spark, called, release_id
        As above.
    target
        Where the header is.
    committed_digest
        The digest of the counts that the ledger has recorded.

    Raises
    ------
    ReleaseError
        If it is another release's.
    """
    header = AuditHeader.from_arrow(collect_arrow(target.read_current(spark)))
    if header.release_id != release_id or header.counts_digest != committed_digest:
        raise ReleaseError(
            f"{called} {release_id!r} is committed, but what stands at "
            f"{target.described!r} is not it (it says {header.release_id!r}): it was replaced. "
            f"{_RESTORE}"
        )
    return header


def refuse_changed_counts(
    spark: SparkSession,
    called: str,
    header: AuditHeader,
    target: OutputTarget,
    fields: Sequence[T.StructField],
    schema: T.StructType | None = None,
) -> None:
    """Check that the counts are the ones that the header has the digest of.

    Parameters
    ----------
    spark, called
        As above.
    header
        The committed header.
    target
        Where the counts are.
    fields, schema
        The group columns, and all columns where the format does not keep their types.

    Raises
    ------
    ReleaseError
        If they were changed or replaced.
    """
    counts = summarised_by_spark(target.read_current(spark, schema), fields)
    if counts.counts_digest != header.counts_digest:
        raise ReleaseError(
            f"the counts at {target.described!r} are not the ones that {called} "
            f"{header.release_id!r} was audited with: they were changed or replaced since. "
            f"{_RESTORE}"
        )
