"""All checks of one mechanism, in the order in which they are reported."""

from __future__ import annotations

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import Mechanism, Rounding
from spark_dphist.streams import ReleaseKey
from spark_dphist.verification.attack_claims import attack_all, neighbour_attacks
from spark_dphist.verification.budget_claims import (
    budget_never_rises,
    budget_of_released_integers,
    encoding_of_each_count,
    limit_of_the_budget,
    worst_case_covers,
)
from spark_dphist.verification.claim import Claim, Verification
from spark_dphist.verification.error_claims import (
    error_at_every_count,
    interval_coverage,
    many_counts,
    simulated_counts,
    simulated_error,
)
from spark_dphist.verification.noise_claims import noise_claims, noise_of_each_group
from spark_dphist.verification.samples import (
    Sampler,
    distant_pairs,
    neighbouring_pairs,
    tested_counts,
)
from spark_dphist.verification.stated_noise import StatedNoise, stated_noise

# Enough to notice a scale off by one percent many times over, in well under a minute.
DRAWS = 2**20


def verify(
    mechanism: Mechanism,
    *,
    relative_error: float,
    unit: PrivacyUnit | None = None,
    rounding: Rounding = "nearest",
    confidence: float = 0.95,
    key: ReleaseKey | None = None,
    draws: int = DRAWS,
) -> Verification:
    """Check what a mechanism promises against closed forms, exact integers and its own draws.

    Parameters
    ----------
    mechanism
        Calibrated to the promise.
    relative_error
        The promise E|published - x| < relative_error * max(x, floor).
    unit
        Whom the release protects; one record if left out.
    rounding, confidence
        Of the release.
    key
        Of the draws; fresh if left out, so that every run is new evidence.
    draws
        How many noisy integers are drawn at each count, and half as many published numbers.

    Notes
    -----
    A correct mechanism fails with probability at most ``Verification.false_alarm_rate``. Passing
    is evidence, not proof: what a broken mechanism would have to hide is in docs/verification.md.
    """
    unit = unit or PrivacyUnit()
    key = key or ReleaseKey.generate()
    noise = stated_noise(mechanism)
    deterministic = _deterministic_claims(mechanism, noise, relative_error, unit, rounding)
    drawn = _drawn_claims(mechanism, noise, relative_error, unit, rounding, confidence, key, draws)
    return Verification(
        mechanism.name, mechanism.parameters(), (*deterministic, *drawn), key.is_fixed
    )


def _deterministic_claims(
    mechanism: Mechanism,
    noise: StatedNoise | None,
    relative_error: float,
    unit: PrivacyUnit,
    rounding: Rounding,
) -> list[Claim]:
    counts = many_counts(mechanism.floor)
    limit = limit_of_the_budget(mechanism)
    return [
        error_at_every_count(mechanism, relative_error, rounding),
        budget_of_released_integers(mechanism, noise, counts, unit.records_per_group),
        worst_case_covers(mechanism, noise, counts, unit),
        budget_never_rises(mechanism, counts),
        *([limit] if limit else []),
        encoding_of_each_count(mechanism, counts),
    ]


def _drawn_claims(
    mechanism: Mechanism,
    noise: StatedNoise | None,
    relative_error: float,
    unit: PrivacyUnit,
    rounding: Rounding,
    confidence: float,
    key: ReleaseKey,
    draws: int,
) -> list[Claim]:
    counts = tested_counts(mechanism.floor)
    near = neighbouring_pairs(counts, unit.records_per_group)
    far = distant_pairs(mechanism, counts)
    attacked = sorted({n for pair in (*near, *far) for n in (pair.first, pair.second)})
    sampler = Sampler(mechanism, key)
    integers = {n: sampler.lattice(n, draws) for n in attacked}
    published = {
        n: sampler.published(n, draws // 2, rounding, confidence)
        for n in sorted({*attacked, *simulated_counts(mechanism.floor)})
    }
    simulated = {n: published[n] for n in simulated_counts(mechanism.floor)}
    claims = [
        *simulated_error(mechanism, relative_error, rounding, simulated),
        interval_coverage(simulated, confidence),
    ]
    if noise is not None:
        residuals = {n: drawn - mechanism.encode(n) for n, drawn in integers.items()}
        claims += noise_claims(noise, residuals)
        claims.append(noise_of_each_group(mechanism, key))
    claims += neighbour_attacks(mechanism, near, integers)
    if far:
        claims.append(
            attack_all(
                mechanism,
                far,
                integers,
                claim="Counts further apart are as close as claimed for so many records",
                what="the noisy integers of distant counts",
            )
        )
    numbers = {n: published[n].noisy_count for n in attacked}
    claims.append(
        attack_all(
            mechanism,
            [*near, *far],
            numbers,
            claim="Published numbers give away no more than the noisy integers",
            what="published numbers",
        )
    )
    return claims
