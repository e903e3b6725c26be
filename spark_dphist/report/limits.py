"""What a release does not do, as far as its public policy tells."""

from __future__ import annotations

from spark_dphist.report.source import PublishedRelease
from spark_dphist.shown import amount_text


def limitations(release: PublishedRelease) -> list[str]:
    """Return what a reader might believe to be protected or promised, but is not."""
    header = release.header
    found = []
    if header.privacy_unit == "record":
        found.append(
            "The unit of protection is one record. Somebody with k records is protected less: by "
            "up to k² times the budget stated here. If people have several records, release with "
            "the column that identifies them as the unit."
        )
    else:
        found.append(
            f"The unit of protection is {header.privacy_unit}. Records beyond the bound are not "
            "counted, so that groups with many records of one unit come out smaller."
        )
    if release.selection is None:
        found.append(
            "Which groups exist is public: the key set was declared, and must not have been taken "
            "from the confidential data. Records outside it are not counted, and how many there "
            "are is not told."
        )
    else:
        found.append(
            "The key set was learnt from the data: small groups are left out, a group of few units "
            "almost always. That a group is missing does not say that it is empty. Records in "
            "groups that are left out are not counted, and how many there are is not told."
        )
    found += [
        "What an attacker learns from other sources is not counted, nor is what follows from the "
        "data about everybody: a trend in the numbers is no secret.",
        "Who may see the run itself (Spark's logs, shuffle files, run times, staging directories) "
        "must be allowed to see the data.",
        f"Groups below the floor of {amount_text(header.floor)} are promised the floor's error, so "
        "that their counts are rough.",
        "Each interval holds by itself, not all at once.",
        "The noise is exact given AES-256 as a pseudorandom function; timing is not defended "
        "against.",
    ]
    if release.ledger is None and header.dataset is None:
        found.append(
            "This release was not charged to a ledger. Budgets of several releases of the same "
            "data add up, and nobody adds them here."
        )
    return found
