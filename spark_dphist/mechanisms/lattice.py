"""The integer lattice on which noise is added, so that no noise is ever a floating-point number."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError

# Counts above this public bound (2.8e14 records in one group) are treated as this bound, so that
# int64 never overflows and neighbouring counts never share a lattice point by accident.
MAX_COUNT = 2**48

SIGMA_RANGE = (2.0**-20, 8.0)

# Lattice steps are at most 2**-52 of a nat, the accuracy of the logarithm in doubles ...
_BITS_PER_NAT = 52
# ... and the noise is at least 2**44 of them wide, for as long as k(x) stays below 2**62.
_MIN_SCALE_BITS = 44
_MAX_BITS_PER_NAT = 55

_SMALLEST_EXPONENT = -64
_LARGEST_EXPONENT = 64
_LARGEST_EXPONENTIAL = 600.0


@dataclass(frozen=True)
class Lattice:
    """Multiples of ``sigma / 2**scale_bits`` on the axis of the transformed count.

    Noise of standard deviation ``sigma`` is ``2**scale_bits`` lattice steps wide, so a discrete
    Gaussian of that scale can be drawn from random bits alone.

    Parameters
    ----------
    sigma
        Standard deviation of the noise on the transformed count, in nats.
    scale_bits
        Binary logarithm of the noise's scale in lattice steps.
    """

    sigma: float
    scale_bits: int

    @classmethod
    def for_sigma(cls, sigma: float) -> Lattice:
        """Choose the resolution: as fine as int64 and the accuracy of doubles make useful.

        Raises
        ------
        ConfigurationError
            If sigma is not within ``SIGMA_RANGE``.
        """
        low, high = SIGMA_RANGE
        if not low <= sigma <= high:
            raise ConfigurationError(
                f"sigma must be a number from {low:.3g} to {high:g}, got {sigma!r}. "
                "Choose sigma by calibrating to a relative error."
            )
        exponent = math.frexp(sigma)[1]
        bits = max(_MIN_SCALE_BITS, _BITS_PER_NAT + exponent)
        return cls(sigma, min(bits, _MAX_BITS_PER_NAT + exponent))

    @property
    def steps_per_unit(self) -> float:
        """Lattice steps per unit of the transformed count."""
        return math.ldexp(1.0, self.scale_bits) / self.sigma

    @cached_property
    def one(self) -> int:
        """The lattice point nearest to 1."""
        return round(Fraction(2) ** self.scale_bits / Fraction(self.sigma))

    @cached_property
    def _steps_of_powers_of_two(self) -> npt.NDArray[np.int64]:
        with decimal.localcontext(prec=60):
            steps_per_octave = (
                decimal.Decimal(2).ln() * 2**self.scale_bits / decimal.Decimal(self.sigma)
            )
            exponents = range(_SMALLEST_EXPONENT, _LARGEST_EXPONENT + 1)
            return np.array(
                [int((steps_per_octave * exponent).to_integral_value()) for exponent in exponents],
                dtype=np.int64,
            )

    def from_logarithm_of(self, value: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Round ln(value) to the lattice, within one step and 15/8 * 2**-52 nats of the exact one.

        Parameters
        ----------
        value
            Positive numbers from 2**-63 to 2**63, each the rounding of an exact one.

        Notes
        -----
        The power of two is looked up in a table of exact multiples of ln 2, so that only the
        logarithm of a number near 1, at most ln(2) / 2 in size, is taken in doubles. In units of
        2**-52 nats: 4 units in the last place are allowed for that, at most 1; the rounding of
        the scale and of the product with it, ln(2) / 2; the rounding of ``value`` by the caller,
        1/2. The product and the entry of the table round by half a step each.
        """
        fraction, exponent = np.frexp(value)
        small = fraction < math.sqrt(0.5)
        near_one = np.where(small, 2.0 * fraction, fraction)
        octave = exponent - small - _SMALLEST_EXPONENT
        remainder = np.rint(np.log(near_one) * self.steps_per_unit).astype(np.int64)
        return np.asarray(self._steps_of_powers_of_two[octave] + remainder, dtype=np.int64)

    def from_fraction(self, value: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Round values in [0, 1] to the lattice, within half a step and 3/2 * 2**-52 nats.

        The value's own rounding, that of the scale and that of the product are 2**-53 each.
        """
        return np.rint(value * self.steps_per_unit).astype(np.int64)

    def to_transformed(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Read lattice points as transformed counts."""
        return np.asarray(steps / self.steps_per_unit, dtype=np.float64)

    def exponential_of(
        self, steps: npt.NDArray[np.int64], offset: float
    ) -> npt.NDArray[np.float64]:
        """Return exp(t + offset) for lattice points t, within 11 * 2**-53 relative.

        The inverse of ``from_logarithm_of``, by the same table, so that the accuracy does not
        depend on the size of t; exponents are capped where a double would overflow.
        """
        powers = self._steps_of_powers_of_two
        octave = np.searchsorted(powers[1:-1], steps, side="right")
        remainder = (steps - powers[octave]) / self.steps_per_unit
        value = np.exp(np.minimum(remainder + offset, _LARGEST_EXPONENTIAL))
        return np.asarray(np.ldexp(value, octave + _SMALLEST_EXPONENT), dtype=np.float64)

    def budget_upper(self, step: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Bound the zCDP budget of moving the transformed count by ``step``, in rho.

        Parameters
        ----------
        step
            Exact distance of the transformed counts of two neighbours, in nats, correct to a few
            units in the last place.

        Notes
        -----
        The shift that the discrete Gaussian sees is an integer number of steps: the exact distance
        plus, for both ends together, at most two steps of rounding and 2**-50 nats for evaluating
        the transform in doubles. By Canonne, Kamath, Steinke 2020, Theorem 14, it costs
        rho = shift**2 / (2 scale**2); docs/mechanisms.md has the proof.
        """
        two_steps = math.ldexp(2.0, -self.scale_bits)
        shift_over_scale = (step + 2.0**-50) / self.sigma + two_steps
        # 1 + 2**-46 covers the rounding of the step and of this line.
        return np.asarray(shift_over_scale**2 / 2 * (1 + 2.0**-46), dtype=np.float64)
