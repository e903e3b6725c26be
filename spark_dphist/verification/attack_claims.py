"""The privacy claim from below: how well an attacker who sees draws tells neighbouring counts.

A lower confidence bound on what is possible must not exceed an upper bound that is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from spark_dphist.accounting.conversions import (
    delta_upper,
    gaussian_delta_upper,
    gaussian_mu_upper,
)
from spark_dphist.accounting.policy import noise_family, read_budget
from spark_dphist.mechanisms import Mechanism
from spark_dphist.verification.attack import Outputs, views
from spark_dphist.verification.bounds import probability_lower, probability_upper
from spark_dphist.verification.claim import FALSE_ALARM_RATE, Claim
from spark_dphist.verification.samples import Pair

# Beyond, e**epsilon is no double.
_LARGEST_EPSILON = 600.0


@dataclass(frozen=True)
class ClaimedPrivacy:
    """What is claimed for two counts: delta as a function of epsilon, and the best accuracy."""

    mechanism: Mechanism
    pair: Pair

    @cached_property
    def rho(self) -> float:
        """The claimed zCDP budget."""
        return self.pair.claimed_rho(self.mechanism)

    @cached_property
    def advantage(self) -> float:
        """The claimed bound on how much more often than not an attacker is right."""
        reading = read_budget(self.mechanism, self.rho, self.pair.records, 1e-6)
        return 2 * reading.attacker_accuracy - 1

    @property
    def epsilons(self) -> list[float]:
        """Where delta is attacked: 0 to two deviations of the privacy loss above its mean."""
        chosen = [0.0, *(self.rho + t * math.sqrt(2 * self.rho) for t in (0, 1, 2))]
        if (pure := self.mechanism.pure_epsilon(self.pair.records)) is not None:
            chosen.append(pure)
        return sorted({epsilon for epsilon in chosen if epsilon <= _LARGEST_EPSILON})

    def delta(self, epsilon: float) -> float:
        """Return the claimed delta at this epsilon."""
        delta = delta_upper(self.rho, epsilon)
        pure = self.mechanism.pure_epsilon(self.pair.records)
        if pure is not None:
            # Randomised response has the largest delta (Kairouz, Oh, Viswanath 2015, Theorem 2.1).
            excess = max(-math.expm1(epsilon - pure), 0.0) if epsilon < pure else 0.0
            return min(delta, excess / (1 + math.exp(-pure)) * (1 + 2.0**-48))
        if noise_family(self.mechanism) == "gaussian":
            return min(delta, gaussian_delta_upper(gaussian_mu_upper(self.rho), epsilon))
        return delta


@dataclass(frozen=True)
class Attempt:
    """One event scored at one epsilon."""

    claimed: ClaimedPrivacy
    epsilon: float
    delta: float
    event: str
    hits_first: int
    hits_second: int


def neighbour_attacks(
    mechanism: Mechanism, pairs: Sequence[Pair], outputs: Mapping[int, Outputs]
) -> list[Claim]:
    """Attack neighbouring counts: the attacker's accuracy, and delta at several epsilons."""
    attempts = list(_attempts(mechanism, pairs, outputs))
    guesses = [attempt for attempt in attempts if attempt.epsilon == 0]
    others = [attempt for attempt in attempts if attempt.epsilon > 0]
    size = _scored(outputs)
    accuracy = _worst(guesses, size, [attempt.claimed.advantage for attempt in guesses])
    claims = [
        Claim(
            claim="No attacker tells neighbouring counts apart better than claimed",
            how=f"{len(guesses)} attacks on the noisy integers, lower confidence bound of the "
            f"accuracy. {_power(mechanism, pairs, size, len(guesses))}",
            measured=(1 + accuracy.lower) / 2,
            upper=(1 + accuracy.claimed) / 2,
            at=accuracy.where,
            false_alarm_rate=FALSE_ALARM_RATE,
        )
    ]
    if others:
        delta = _worst(others, size, [attempt.delta for attempt in others])
        claims.append(
            Claim(
                claim="Neighbouring counts are (epsilon, delta)-close as claimed",
                how=f"{len(others)} attacks on the noisy integers, lower confidence bound of "
                "delta at up to 4 epsilons",
                measured=delta.lower,
                upper=delta.claimed,
                at=delta.where,
                false_alarm_rate=FALSE_ALARM_RATE,
            )
        )
    return claims


def attack_all(
    mechanism: Mechanism,
    pairs: Sequence[Pair],
    outputs: Mapping[int, Outputs],
    *,
    claim: str,
    what: str,
) -> Claim:
    """Attack pairs at every epsilon, 0 included, for one claim on delta."""
    attempts = list(_attempts(mechanism, pairs, outputs))
    delta = _worst(attempts, _scored(outputs), [attempt.delta for attempt in attempts])
    return Claim(
        claim=claim,
        how=f"{len(attempts)} attacks on {what}, lower confidence bound of delta",
        measured=delta.lower,
        upper=delta.claimed,
        at=delta.where,
        false_alarm_rate=FALSE_ALARM_RATE,
    )


def _attempts(
    mechanism: Mechanism, pairs: Sequence[Pair], outputs: Mapping[int, Outputs]
) -> Iterator[Attempt]:
    for pair in pairs:
        claimed = ClaimedPrivacy(mechanism, pair)
        deltas = {epsilon: claimed.delta(epsilon) for epsilon in claimed.epsilons}
        for forward in views(outputs[pair.first], outputs[pair.second]):
            for view in (forward, forward.swapped()):
                for epsilon, delta in deltas.items():
                    for event in view.best_events(math.exp(epsilon)):
                        hits = event.hits_first, event.hits_second
                        yield Attempt(claimed, epsilon, delta, event.name, *hits)


@dataclass(frozen=True)
class _Finding:
    lower: float
    claimed: float
    where: str


def _worst(attempts: Sequence[Attempt], size: int, claims: Sequence[float]) -> _Finding:
    """Return the attempt that is furthest above its claim, or the most successful if none is."""
    rate = FALSE_ALARM_RATE / (2 * len(attempts))
    first = probability_lower([attempt.hits_first for attempt in attempts], size, rate)
    second = probability_upper([attempt.hits_second for attempt in attempts], size, rate)
    factor = np.exp([attempt.epsilon for attempt in attempts])
    # delta >= P(A) - e**epsilon Q(A) for every event A; 0 is always true.
    lower = np.maximum(first - factor * second, 0.0)
    claimed = np.array(claims)
    broken = lower > claimed
    worst = int(np.argmax(np.where(broken, lower - claimed, -1.0) if broken.any() else lower))
    attempt = attempts[worst]
    where = f"{attempt.claimed.pair}, {attempt.event}"
    if attempt.epsilon:
        where += f", epsilon {attempt.epsilon:.3g}"
    return _Finding(float(lower[worst]), float(claimed[worst]), where)


def _scored(outputs: Mapping[int, Outputs]) -> int:
    size = next(iter(outputs.values())).size
    return size - size // 2


def _power(mechanism: Mechanism, pairs: Sequence[Pair], size: int, attempts: int) -> str:
    """Say what the attack on the most exposed pair would notice in 99 of 100 runs."""
    advantage = max(ClaimedPrivacy(mechanism, pair).advantage for pair in pairs)
    # Both probabilities are near 1/2; normal approximation, for information only.
    bound = -2 * float(ndtri(FALSE_ALARM_RATE / (2 * attempts))) * 0.5 / math.sqrt(size)
    spread = float(ndtri(0.99)) * math.sqrt(0.5 / size)
    seen = advantage + bound + spread
    text = f"An accuracy {(bound + spread) / 2:.2%} above the claim would be noticed"
    if advantage == 0 or seen >= 1:
        return text
    # The accuracy is about Phi(mu / 2), and mu is one over the noise.
    share = float(ndtri((1 + advantage) / 2) / ndtri((1 + seen) / 2))
    return f"{text}, so noise at {share:.0%} of its scale"
