"""Whom a release protects, and what a mechanism costs one privacy unit in the worst case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_dphist.accounting.conversions import pure_to_rho_upper
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Mechanism

# Beyond, one person's records would be most of many groups; the bound below would take long too.
MAX_RECORDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PrivacyUnit:
    """The unit whose presence is hidden; neighbouring data sets differ in all records of one unit.

    Parameters
    ----------
    column
        The column that identifies the unit, or None where each record is a unit of its own.
    max_records
        How many records of one unit are counted at most, over all groups together.
    distinct
        Whether a group counts its distinct units instead of its records. A unit then adds at most
        one to a group, and ``max_records`` bounds in how many groups it is counted.

    Raises
    ------
    ConfigurationError
        If the bound is not from 1 to ``MAX_RECORDS``, or records are units and it is not 1.
    """

    column: str | None = None
    max_records: int = 1
    distinct: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_records <= MAX_RECORDS:
            raise ConfigurationError(
                f"max_records must be from 1 to {MAX_RECORDS:,}, got {self.max_records!r}"
            )
        if self.column is None and (self.max_records != 1 or self.distinct):
            raise ConfigurationError(
                "max_records and distinct need the column that identifies a unit: name it as "
                "'unit', for example unit = \"user_id\""
            )

    @property
    def name(self) -> str:
        """The unit as ledgers name it: ``record`` or its column."""
        return self.column or "record"

    @property
    def described(self) -> str:
        """The unit in words, as an audit states it."""
        if self.column is None:
            return "record"
        if self.distinct:
            counted = f"counted once in each of at most {self.max_records} groups"
        else:
            counted = f"of which at most {self.max_records} are counted"
        return f"all records of one {self.column!r}, {counted}"

    @property
    def records_per_group(self) -> int:
        """By how much one unit can change the count of one group."""
        return 1 if self.distinct else self.max_records

    def worst_case_rho_upper(self, mechanism: Mechanism) -> float:
        """Bound what the release costs one unit, in rho, whatever the data."""
        return float(self.rho_at_least_upper(mechanism, [0])[0])

    def rho_at_least_upper(
        self, mechanism: Mechanism, count: npt.ArrayLike
    ) -> npt.NDArray[np.float64]:
        """Bound the cost, in rho, of a unit all of whose records lie in groups of at least a count.

        Parameters
        ----------
        mechanism
            The mechanism, calibrated.
        count
            Sizes of groups, shape (counts,); the bound is returned for each.

        Notes
        -----
        A unit with k records has k_1 + k_2 + ... <= k of them in its groups. The groups' noise is
        independent, so their budgets add, and with s(j) = sup over n >= count of v_j(n),
        sum s(k_i) <= k max_j s(j) / j. For j records v_j(n) is greatest at ``count`` or at the
        count nearest to j above it. The bound never exceeds k**2 v(1), nor the zCDP budget of a
        mechanism's pure epsilon (docs/privacy-unit.md).
        """
        counts = np.asarray(count, dtype=np.int64)
        k, single = self.max_records, float(mechanism.budget(0))
        ends = _block_ends(self.records_per_group)
        starts = np.append(1, ends[:-1] + 1)
        ratio = np.zeros(counts.shape)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            greatest = np.maximum(
                mechanism.budget(counts, end), mechanism.budget(np.maximum(counts, end), end)
            )
            # s rises with j, so s(j) / j <= s(end) / start within a block; and s(j) <= j**2 v(1).
            ratio = np.maximum(ratio, np.minimum(greatest / start, end * single))
        bound = k * ratio * (1 + 2.0**-50)
        epsilon = mechanism.pure_epsilon(k)
        return bound if epsilon is None else np.minimum(bound, pure_to_rho_upper(epsilon))


def _block_ends(k: int) -> npt.NDArray[np.int64]:
    """Split 1..k into single numbers up to 512 and blocks of at most 1 % above."""
    coarse = np.geomspace(min(k, 512), k, 800).round().astype(np.int64)
    return np.unique(np.concatenate([np.arange(1, min(k, 512) + 1, dtype=np.int64), coarse]))
