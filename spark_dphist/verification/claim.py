"""What a verification found out: one claim each, with what was measured and its bounds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

# The probability that a correct mechanism fails a check that rests on random draws.
FALSE_ALARM_RATE = 1e-7


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, how it was checked, and the worst that was measured.

    Parameters
    ----------
    claim, how
        Sentences.
    measured
        The number that has to lie between the bounds; of many, the worst.
    lower, upper
        The bounds; infinite where there is none.
    strict
        Whether the bounds themselves are excluded.
    at
        Where the worst was found.
    false_alarm_rate
        Bound on the probability that a correct mechanism fails; 0 for a check without randomness.
    """

    claim: str
    how: str
    measured: float
    lower: float = -math.inf
    upper: float = math.inf
    strict: bool = False
    at: str = ""
    false_alarm_rate: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the claim withstood; never where the measured value is not a number."""
        if self.strict:
            return self.lower < self.measured < self.upper
        return self.lower <= self.measured <= self.upper

    def as_json(self) -> dict[str, Any]:
        """Return the claim for programs: the fields of this class and ``passed``."""
        return {
            "claim": self.claim,
            "how": self.how,
            "measured": _finite(self.measured),
            "lower": _finite(self.lower),
            "upper": _finite(self.upper),
            "strict": self.strict,
            "at": self.at,
            "passed": self.passed,
            "false_alarm_rate": self.false_alarm_rate,
        }


@dataclass(frozen=True)
class Verification:
    """All claims of one mechanism."""

    mechanism: str
    parameters: dict[str, Any]
    claims: tuple[Claim, ...]
    fixed_release_key: bool

    @property
    def passed(self) -> bool:
        """Whether every claim withstood."""
        return all(claim.passed for claim in self.claims)

    @property
    def false_alarm_rate(self) -> float:
        """Bound on the probability that a correct mechanism fails any check of the run."""
        return math.fsum(claim.false_alarm_rate for claim in self.claims)

    def to_json(self) -> str:
        """Return the verification for programs: the fields of this class, by name."""
        fields = {
            "mechanism": self.mechanism,
            "parameters": self.parameters,
            "passed": self.passed,
            "false_alarm_rate": self.false_alarm_rate,
            "fixed_release_key": self.fixed_release_key,
            "claims": [claim.as_json() for claim in self.claims],
        }
        return json.dumps(fields, indent=2, allow_nan=False)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
