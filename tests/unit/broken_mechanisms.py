"""Mechanisms with one mistake each, as somebody might make it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from spark_dphist.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    FixedGaussian,
    FixedLaplace,
    LinearLog,
    ShiftedLog,
)


def broken_version(kind, relative_error, floor, **options):
    """Calibrate the right mechanism, and make the broken one of the same parameters."""
    right = kind.__base__.calibrate(relative_error=relative_error, floor=floor, **options)
    return kind(**{field.name: getattr(right, field.name) for field in dataclasses.fields(right)})


class Changed:
    """A noise distribution whose draws are changed afterwards."""

    def __init__(self, noise, change):
        self._noise, self._change = noise, change

    def sample(self, source, size):
        return np.asarray(self._change(self._noise.sample(source, size)), dtype=np.int64)


class HalfNoiseShiftedLog(ShiftedLog):
    @property
    def noise(self):
        return DiscreteGaussian.power_of_two(self.lattice.scale_bits - 1)


class HalfNoiseLinearLog(LinearLog):
    @property
    def noise(self):
        return DiscreteGaussian.power_of_two(self.lattice.scale_bits - 1)


class HalfNoiseFixedGaussian(FixedGaussian):
    @property
    def noise(self):
        return DiscreteGaussian(Fraction(self.scale) ** 2 / 4)


class HalfNoiseFixedLaplace(FixedLaplace):
    @property
    def noise(self):
        return DiscreteLaplace(2 * Fraction(self.epsilon))


class OnePercentLess(ShiftedLog):
    """The sampler's scale is off by one percent, the dangerous way."""

    @property
    def noise(self):
        right = DiscreteGaussian.power_of_two(self.lattice.scale_bits)
        return Changed(right, lambda z: np.rint(z * 0.99))


class OnePercentMore(ShiftedLog):
    @property
    def noise(self):
        right = DiscreteGaussian.power_of_two(self.lattice.scale_bits)
        return Changed(right, lambda z: np.rint(z * 1.01))


class OnePercentLessLaplace(FixedLaplace):
    @property
    def noise(self):
        return DiscreteLaplace(Fraction(self.epsilon) / Fraction(99, 100))


class CutTails(ShiftedLog):
    @property
    def noise(self):
        right = DiscreteGaussian.power_of_two(self.lattice.scale_bits)
        most = 3 * 2**self.lattice.scale_bits
        return Changed(right, lambda z: np.clip(z, -most, most))


class CoarseNoise(ShiftedLog):
    """Noise in multiples of 2**20 steps: it looks right, and the low bits give the count away."""

    @property
    def noise(self):
        right = DiscreteGaussian.power_of_two(self.lattice.scale_bits)
        return Changed(right, lambda z: (z >> 20) << 20)


class DriftInTheNoise(ShiftedLog):
    """The drift, which belongs to the decoder, is in the noise."""

    @property
    def noise(self):
        right = DiscreteGaussian.power_of_two(self.lattice.scale_bits)
        drift = round(self.drift_value * self.lattice.steps_per_unit)
        return Changed(right, lambda z: z - drift)


class DriftInTheEncoding(ShiftedLog):
    """A correction of the bias, half of the drift at the shift and all of it at large counts."""

    def encode(self, count):
        share = np.asarray(count) / (np.asarray(count) + self.shift)
        drift = self.drift_value * self.lattice.steps_per_unit
        return super().encode(count) + np.rint(share * drift).astype(np.int64)


class CentredEncoding(ShiftedLog):
    """The encoding depends on the other groups of the batch."""

    def encode(self, count):
        steps = super().encode(count)
        return steps - np.rint(np.mean(steps)).astype(np.int64)


class SharedNoise(ShiftedLog):
    """All groups of a batch get the noise of the first."""

    @property
    def noise(self):
        right = DiscreteGaussian.power_of_two(self.lattice.scale_bits)
        return Changed(right, lambda z: np.full(z.size, z[0]))


class NoiseOfTheRow(ShiftedLog):
    """The noise depends on the row instead of the group: fresh at each retry."""

    @property
    def noise(self):
        scale = 2.0**self.lattice.scale_bits
        generator = np.random.default_rng(7)

        class Rows:
            def sample(self, source, size):
                return np.rint(generator.normal(0, scale, size)).astype(np.int64)

        return Rows()


class BudgetOfTheWrongNeighbour(ShiftedLog):
    """ln((n + 1 + c) / (n + c)): the larger neighbour, who is further away than no one."""

    def budget(self, count, records_per_unit=1):
        n = np.asarray(count, dtype=np.float64)
        return self.lattice.budget_upper(np.log1p(records_per_unit / (n + self.shift)))


class BudgetWithoutRounding(ShiftedLog):
    """The budget of real numbers, though integers are released."""

    def budget(self, count, records_per_unit=1):
        n = np.asarray(count, dtype=np.float64)
        before = np.maximum(n - records_per_unit, 0)
        lower = np.where(n > 0, before, n)
        upper = np.where(n > 0, n, records_per_unit)
        return np.log1p((upper - lower) / (lower + self.shift)) ** 2 / (2 * self.sigma**2)


class BudgetOfOneRecord(LinearLog):
    """Whatever the privacy unit, one record is charged."""

    def budget(self, count, records_per_unit=1):
        return super().budget(count, 1)


class BudgetTooSmallForGiants(ShiftedLog):
    def budget(self, count, records_per_unit=1):
        n = np.asarray(count, dtype=np.float64)
        return super().budget(n, records_per_unit) * np.where(n > 1e9, 0.99, 1.0)


class RisingBudget(ShiftedLog):
    """Sound, but not better for larger groups."""

    def budget(self, count, records_per_unit=1):
        n = np.asarray(count, dtype=np.float64)
        return super().budget(n, records_per_unit) * np.where(n > 300, 4.0, 1.0)


class FlatteredError(LinearLog):
    """States an error that is 5 % too small."""

    def expected_absolute_error(self, count, rounded=False):
        return 0.95 * super().expected_absolute_error(count, rounded)


class RoundingIgnored(ShiftedLog):
    """States the error of the estimate for its nearest integer too."""

    def expected_absolute_error(self, count, rounded=False):
        return super().expected_absolute_error(count, rounded=False)


class NarrowInterval(ShiftedLog):
    def interval(self, lattice, confidence=0.95):
        return super().interval(lattice, confidence - 0.02)


class LeakyDecoder(ShiftedLog):
    """Adds the count's parity, seen before the noise, to what is published."""

    def encode(self, count):
        object.__setattr__(self, "_parity", np.asarray(count, dtype=np.int64) % 2)
        return super().encode(count)

    def decode(self, lattice):
        return super().decode(lattice) // 2 * 2 + self._parity
