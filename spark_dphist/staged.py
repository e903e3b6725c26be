"""What becomes of what is staged: removed after a failure, or bound to the ledger's charge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from spark_dphist.accounting.ledger import Ledger, LedgerError, ReleaseConflictError
from spark_dphist.errors import ReleaseError
from spark_dphist.spark.places import OutputTarget


def discard_staged(spark: SparkSession, targets: Sequence[OutputTarget]) -> list[str]:
    """Remove what was staged, and return the places where that failed."""
    remaining = []
    for target in targets:
        try:
            target.discard(spark)
        except Exception:
            remaining.append(target.described)
    return remaining


def what_remains(remaining: Sequence[str]) -> str:
    """Return the sentence that names what could not be removed, after a space; empty if nothing."""
    if not remaining:
        return ""
    return (
        f" What was staged beside {', '.join(remaining)} could not be removed: remove it by hand."
    )


def abort_command(ledger: Ledger, release_id: str) -> str:
    """Return the command that frees the charge of a release of which nothing was seen."""
    return f"spark-dphist ledger abort {ledger.location} {release_id} --nothing-was-published"


def commit_staged(
    spark: SparkSession,
    ledger: Ledger,
    called: str,
    release_id: str,
    targets: Sequence[OutputTarget],
    outputs: Mapping[str, object],
) -> None:
    """Commit what is staged to the ledger.

    Parameters
    ----------
    spark, ledger
        Session and ledger.
    called
        What an error calls it: ``release`` or ``collection``.
    release_id, targets
        Its id and places.
    outputs
        What the ledger is to record.

    Raises
    ------
    ReleaseError
        If the ledger refuses it, and then nothing stays staged; or if it did not confirm it, and
        then everything does.
    """
    try:
        ledger.commit(release_id, outputs)
    except ReleaseConflictError as error:
        remaining = discard_staged(spark, targets)
        raise ReleaseError(
            f"{called} {release_id!r} was made, but may not be shown: {error} Nothing was "
            "published; what was staged "
            + (f"beside {', '.join(remaining)} must be removed." if remaining else "is removed.")
        ) from None
    except LedgerError as error:
        raise ReleaseError(
            f"{called} {release_id!r} is made, but the ledger did not confirm it: {error} "
            f"Nothing was published; the finished {called} stands beside its places, under names "
            "with 'staging' and the release id. Ask for the same release id again: if the ledger "
            "has it as committed, it is published as it stands. If it is refused as half done, "
            "remove what is staged and free its charge with: "
            f"{abort_command(ledger, release_id)}."
        ) from None
