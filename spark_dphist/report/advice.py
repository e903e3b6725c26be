"""How to use the numbers of a release, with examples made of its own."""

from __future__ import annotations

from dataclasses import dataclass

from spark_dphist.mechanisms import Constant
from spark_dphist.overview import ShownGroup, ShownGroups
from spark_dphist.report.source import PublishedRelease
from spark_dphist.shown import amount_text, count_text, share_text

# Large enough to be past every floor.
_LARGE = 10**12
# A bias below this share of the count is lost in the noise.
_NO_BIAS = 5e-4


@dataclass(frozen=True)
class Advice:
    """One subject: what holds, and an example."""

    subject: str
    text: str
    example: str | None = None


def advice(release: PublishedRelease, shown: ShownGroups) -> list[Advice]:
    """Return what an analyst should know before computing with the released counts."""
    header = release.header
    if isinstance(release.mechanism, Constant):
        return [
            Advice(
                "These are no measurements",
                "The promise allows an error as large as the count, so that every group has the "
                "same number, which does not depend on the data. Do not compute with it.",
            )
        ]
    confidence = header.confidence
    misses = (1 - confidence) * header.key_set_size
    pair = shown.rows[:2] if len(shown.rows) > 1 else ()
    return [
        Advice(
            "One count",
            "Quote the released count with its interval. The true count lies within it with "
            f"probability {share_text(confidence)}, for each group by itself: of "
            f"{header.key_set_size:,} intervals about {amount_text(misses)} may miss. A released 0 "
            "does not say that a group is empty, and no number says that a single person is there.",
        ),
        Advice(
            "Sums",
            "The noise of different groups is independent, so sums of many groups are relatively "
            "more accurate than each; their bias adds up, however. release.total(by=...) in "
            "Python gives sums with intervals. By hand: add the lower ends and the upper ends; "
            "that holds for two groups with probability at least "
            f"{share_text(max(0.0, 2 * confidence - 1))}, and is wider than it need be for many.",
            _sum_example(*pair) if pair else None,
        ),
        Advice(
            "Ratios and shares",
            "Divide the released counts for an estimate. For bounds divide the lower end of one by "
            "the upper end of the other, and the other way round; that holds with probability at "
            f"least {share_text(max(0.0, 2 * confidence - 1))}. A ratio to a small count says "
            "little.",
            _ratio_example(*pair) if pair else None,
        ),
        Advice(
            "Comparisons",
            "Two groups whose intervals overlap may be in either order. Differences between two "
            "releases carry the noise of both.",
        ),
        Advice("Bias", _bias(release)),
        Advice(
            "Further processing",
            "Whatever is computed from these tables costs no further privacy. Averaging several "
            "releases of the same data does: each of them was charged.",
        ),
    ]


def _sum_example(one: ShownGroup, other: ShownGroup) -> str:
    return (
        f"{one.label} and {other.label} together: {count_text(one.noisy_count + other.noisy_count)}"
        f", between {count_text(one.lower + other.lower)} and "
        f"{count_text(one.upper + other.upper)}."
    )


def _ratio_example(one: ShownGroup, other: ShownGroup) -> str | None:
    if min(other.lower, other.noisy_count) <= 0:
        return None
    low, high = one.lower / other.upper, one.upper / other.lower
    return (
        f"{one.label} to {other.label}: {one.noisy_count / other.noisy_count:.3g}, between "
        f"{low:.3g} and {high:.3g}."
    )


def _bias(release: PublishedRelease) -> str:
    mechanism = release.mechanism
    large = float(mechanism.expected_bias(_LARGE)) / _LARGE
    empty = float(mechanism.expected_bias(0))
    small = (
        f"A group of 0 is released as {amount_text(empty)} on average, as no count is below 0. "
        if empty > 0
        else ""
    )
    if abs(large) < _NO_BIAS:
        return (
            f"{small}The counts of large groups are right on average, to within "
            f"{share_text(_NO_BIAS)}."
        )
    return (
        f"{small}The counts of large groups are {share_text(abs(large))} too "
        f"{'small' if large < 0 else 'large'} on average, the price of the least error for each "
        "single count. A sum of many groups inherits it, and intervals are free of it. The audit "
        "table has each group's expected bias."
    )
