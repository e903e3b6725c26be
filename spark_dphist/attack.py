"""The best membership-inference attack on releases with fixed noise and with growing noise.

An attacker sees what is published about one group and guesses whether a privacy unit's records are
in it, at even odds. Counts are invented, published by the code that publishes real ones, and the
attacker's success is set beside the best that any attacker can have (docs/attack.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from spark_dphist.accounting.policy import read_budget
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import FixedGaussian, Mechanism, Rounding
from spark_dphist.streams import ReleaseKey
from spark_dphist.verification.attack import views
from spark_dphist.verification.bounds import probability_lower, probability_upper
from spark_dphist.verification.samples import Pair, Sampler
from spark_dphist.verification.stated_noise import stated_noise

# Published numbers of each count: the attacker learns from one half and is scored on the other.
DRAWS = 2**21
# Of all bands of one report together.
CONFIDENCE = 0.99

_LARGEST_SIZE = 10**6
# Scales that differ by less are one comparison, not two.
_SAME_SCALE = 0.01


@dataclass(frozen=True)
class AttackedSize:
    """One attack: whether a unit's records are among the ``count`` of a group or not.

    ``accuracy`` is the share of right guesses, with the bounds of its confidence band;
    ``best_possible`` what no attacker on this group can exceed on average, exact but for doubles;
    ``claimed`` the bound that follows from the budget at this count. Errors are in counts: the
    mean of |published - count| in the same draws, and its expectation in closed form.
    """

    count: int
    accuracy: float
    accuracy_lower: float
    accuracy_upper: float
    best_possible: float
    claimed: float
    mean_error: float
    expected_error: float


@dataclass(frozen=True)
class AttackedRelease:
    """One mechanism, attacked at every group size; ``label`` says how it was chosen."""

    label: str
    mechanism: Mechanism
    sizes: tuple[AttackedSize, ...]

    @property
    def last(self) -> AttackedSize:
        """The attack on the largest group."""
        return self.sizes[-1]


@dataclass(frozen=True)
class AttackReport:
    """All releases under attack; the configured one last.

    ``records`` is how many records the attacked unit has in the group; ``scored`` how many guesses
    were scored at each size; ``confidence`` that of all bands of the report together.
    """

    releases: tuple[AttackedRelease, ...]
    relative_error: float
    floor: float
    privacy_unit: PrivacyUnit
    records: int
    scored: int
    confidence: float
    fixed_release_key: bool

    @property
    def configured(self) -> AttackedRelease:
        """The configured release."""
        return self.releases[-1]

    @property
    def fixed(self) -> AttackedRelease:
        """Fixed noise for the same promise."""
        return self.releases[0]

    @property
    def half_width(self) -> float:
        """Half of the widest confidence band."""
        sizes = [size for release in self.releases for size in release.sizes]
        return max(size.accuracy_upper - size.accuracy_lower for size in sizes) / 2

    def to_json(self) -> str:
        """Return the report for programs: the fields of these classes, by name."""
        fields = {
            "relative_error": self.relative_error,
            "floor": self.floor,
            "privacy_unit": self.privacy_unit.described,
            "records": self.records,
            "scored": self.scored,
            "confidence": self.confidence,
            "fixed_release_key": self.fixed_release_key,
            "releases": [
                {
                    "label": release.label,
                    "mechanism": release.mechanism.name,
                    "parameters": release.mechanism.parameters(),
                    "sizes": [asdict(size) for size in release.sizes],
                }
                for release in self.releases
            ],
        }
        return json.dumps(fields, indent=2, allow_nan=False)


def attack_release(
    mechanism: Mechanism,
    *,
    relative_error: float,
    unit: PrivacyUnit | None = None,
    rounding: Rounding = "nearest",
    confidence: float = CONFIDENCE,
    key: ReleaseKey | None = None,
    draws: int = DRAWS,
) -> AttackReport:
    """Attack a release, and fixed Gaussian noise for the same promise and the same worst case.

    Parameters
    ----------
    mechanism
        Calibrated to the promise.
    relative_error
        The promise E|published - x| < relative_error * max(x, floor).
    unit
        Whom the release protects; the attacked unit has as many records in the group as it may.
    rounding
        Of the release.
    confidence
        Of all bands of the report together (Bonferroni).
    key
        Of the draws; fresh if left out, so that every run is new evidence.
    draws
        How many published numbers are drawn at each count.

    Raises
    ------
    ConfigurationError
        If no fixed noise keeps the promise.

    Notes
    -----
    The attacker learns a threshold for the published count from one half of the draws and is
    scored on the other. A threshold is the best test where the noise's likelihood ratio is
    monotone (Neyman and Pearson), as it is for Gaussian and Laplace noise.
    """
    unit = unit or PrivacyUnit()
    key = key or ReleaseKey.generate()
    chosen = list(_compared(mechanism, relative_error, unit))
    sizes = sizes_under_attack(mechanism.floor, unit.records_per_group)
    rate = (1 - confidence) / (len(chosen) * len(sizes))
    releases = []
    for place, (label, attacked) in enumerate(chosen):
        # Keys of their own, so that the releases' points are independent.
        own = ReleaseKey(key.derive(f"attack-{place}".encode()), key.is_fixed)
        sampler = Sampler(attacked, own)
        pairs = [
            Pair(size - unit.records_per_group, size, unit.records_per_group) for size in sizes
        ]
        points = tuple(_attacked(sampler, pair, rounding, draws, rate) for pair in pairs)
        releases.append(AttackedRelease(label, attacked, points))
    return AttackReport(
        releases=tuple(releases),
        relative_error=relative_error,
        floor=mechanism.floor,
        privacy_unit=unit,
        records=unit.records_per_group,
        scored=2 * (draws - draws // 2),
        confidence=confidence,
        fixed_release_key=key.is_fixed,
    )


def sizes_under_attack(floor: float, records: int) -> list[int]:
    """Return group sizes from the attacked unit's records alone to a million, in rising order."""
    decades = (step * 10**power for power in range(7) for step in (1, 3))
    return sorted(
        size
        for size in {records, math.ceil(floor), *decades}
        if records <= size <= max(_LARGEST_SIZE, records)
    )


def best_possible_accuracy(mechanism: Mechanism, pair: Pair) -> float:
    """Return the accuracy of the best guess between two counts at even odds, up to doubles.

    Notes
    -----
    By Neyman and Pearson it is (1 + TV) / 2. The noisy integers of the two counts are one
    symmetric, unimodal distribution at two places d apart, whose densities cross in the middle, so
    TV = P(-d/2 <= N < d/2); for a Gaussian on a fine lattice (1 + TV) / 2 = Phi(d / (2 scale)).
    What is published is computed from the noisy integer and tells nobody more.
    """
    noise = stated_noise(mechanism)
    first, second = (int(step) for step in mechanism.encode([pair.first, pair.second]))
    if noise is None:
        return 0.5
    distance = abs(second - first)
    ends = np.array([-(distance // 2), (distance + 1) // 2], dtype=np.float64)
    inside, above = noise.tail(ends)
    return float(1 + inside - above) / 2


def _compared(
    mechanism: Mechanism, relative_error: float, unit: PrivacyUnit
) -> Iterator[tuple[str, Mechanism]]:
    floor, records = mechanism.floor, unit.records_per_group
    same_promise = FixedGaussian.calibrate(relative_error=relative_error, floor=floor)
    yield "fixed Gaussian noise, same promise", same_promise
    if worst := mechanism.worst_case_budget(records):
        same_worst = FixedGaussian.for_budget(worst, floor=floor, records_per_unit=records)
        if abs(math.log(same_worst.scale / same_promise.scale)) > _SAME_SCALE:
            yield "the same, for the same worst case", same_worst
    yield f"this release ({mechanism.name})", mechanism


def _attacked(
    sampler: Sampler, pair: Pair, rounding: Rounding, draws: int, rate: float
) -> AttackedSize:
    without, with_unit = (
        sampler.published(count, draws, rounding, 0.5).noisy_count
        for count in (pair.first, pair.second)
    )
    view = next(views(with_unit, without))
    threshold = next(each for each in view.best_events(1.0) if each.name.endswith("threshold"))
    scored = draws - draws // 2
    right = threshold.hits_first + scored - threshold.hits_second
    # As many guesses with the unit as without make the share of right ones vary less than that of
    # coin tosses (Hoeffding 1956, Theorem 4), so the binomial's bounds hold.
    lower, upper = (
        float(bound(right, 2 * scored, rate / 2))
        for bound in (probability_lower, probability_upper)
    )
    mechanism = sampler.mechanism
    rounded = rounding == "nearest"
    reading = read_budget(mechanism, pair.claimed_rho(mechanism), pair.records, 1e-6)
    return AttackedSize(
        count=pair.second,
        accuracy=right / (2 * scored),
        accuracy_lower=lower,
        accuracy_upper=upper,
        best_possible=best_possible_accuracy(mechanism, pair),
        claimed=reading.attacker_accuracy,
        mean_error=float(np.mean(np.abs(with_unit - pair.second))),
        expected_error=float(mechanism.expected_absolute_error(pair.second, rounded)),
    )
