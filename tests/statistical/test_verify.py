"""``spark-dphist verify``: it passes what is shipped and catches what is broken.

At full size, as the command does it, where the size matters; with a fourth of the draws elsewhere.

The release key is fixed, so these tests do not flicker. With a fresh key, as on the command line, a
correct mechanism fails one run with probability at most 1e-6.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path

import pytest

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import FixedGaussian, FixedLaplace, LinearLog, ShiftedLog
from spark_dphist.streams import ReleaseKey
from spark_dphist.verification import verify
from spark_dphist.verification.run import DRAWS

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import broken_mechanisms as broken
from broken_mechanisms import Changed, broken_version

pytestmark = pytest.mark.statistical

KEY = ReleaseKey.fixed_for_tests(b"the verification's key of tests.")
SECONDS = 120
FEWER_DRAWS = DRAWS // 4
# A fourth of the draws does not notice one percent many times over.
SLIGHTLY_BROKEN = {broken.OnePercentLess, broken.OnePercentMore, broken.OnePercentLessLaplace}


@cache
def verify_shipped(kind, relative_error, floor, draws):
    mechanism = kind.calibrate(relative_error=relative_error, floor=floor)
    return verify(mechanism, relative_error=relative_error, key=KEY, draws=draws)


@cache
def verify_broken(kind):
    draws = DRAWS if kind in SLIGHTLY_BROKEN else FEWER_DRAWS
    return verify(broken_version(kind, 0.1, 50), relative_error=0.1, key=KEY, draws=draws)


def failed(verified):
    return [claim.claim for claim in verified.claims if not claim.passed]


def claim_of(verified, beginning):
    (claim,) = [claim for claim in verified.claims if claim.claim.startswith(beginning)]
    return claim


@pytest.mark.parametrize(
    ("kind", "relative_error", "floor", "draws"),
    [
        (ShiftedLog, 0.1, 50, DRAWS),
        (ShiftedLog, 0.9, 1, FEWER_DRAWS),
        (LinearLog, 0.1, 50, DRAWS),
        (LinearLog, 0.5, 3, FEWER_DRAWS),
        (FixedGaussian, 0.1, 20, FEWER_DRAWS),
        (FixedLaplace, 0.1, 20, FEWER_DRAWS),
    ],
)
def test_what_is_shipped_withstands_in_time(kind, relative_error, floor, draws):
    # Of the processor: other tests may run beside this one.
    start = time.process_time()
    verified = verify_shipped(kind, relative_error, floor, draws)
    assert failed(verified) == []
    assert verified.false_alarm_rate <= 1e-6 * (1 + 1e-9)
    assert time.process_time() - start < SECONDS


def test_a_unit_of_several_records_withstands():
    mechanism = LinearLog.calibrate(relative_error=0.1, floor=50)
    unit = PrivacyUnit(column="user", max_records=4)
    verified = verify(mechanism, relative_error=0.1, unit=unit, key=KEY, draws=FEWER_DRAWS)
    assert failed(verified) == []


@pytest.mark.parametrize(
    ("kind", "beginning"),
    [
        (broken.HalfNoiseLinearLog, "No attacker tells neighbouring counts apart"),
        (broken.HalfNoiseFixedGaussian, "No attacker tells neighbouring counts apart"),
        (broken.OnePercentLess, "The noise has the stated scale"),
        (broken.OnePercentMore, "The noise has the stated scale"),
        (broken.OnePercentLessLaplace, "The noise has the stated scale"),
        (broken.DriftInTheNoise, "The noise has the stated distribution"),
        (broken.CoarseNoise, "No attacker tells neighbouring counts apart"),
        (broken.NarrowInterval, "Intervals contain the true count"),
        (broken.FlatteredError, "The stated expected error is not below the true one"),
        (broken.LeakyDecoder, "Published numbers give away no more"),
    ],
)
def test_what_is_broken_is_caught(kind, beginning):
    assert not claim_of(verify_broken(kind), beginning).passed


class SomeNoiseLess(ShiftedLog):
    """The noise is 10 % too small."""

    @property
    def noise(self):
        return Changed(ShiftedLog.calibrate(relative_error=0.1, floor=50).noise, lambda z: z * 0.9)


def test_the_attacker_notices_as_little_as_the_report_says():
    attacker = "No attacker tells neighbouring counts apart"
    said = claim_of(verify_shipped(ShiftedLog, 0.1, 50, DRAWS), attacker).how
    assert "noise at 92% of its scale" in said
    assert not claim_of(verify_broken(SomeNoiseLess), attacker).passed


def test_the_scale_is_noticed_many_times_over_at_one_percent():
    """So the power of the test of the scale is no matter of luck."""
    claim = claim_of(verify_broken(broken.OnePercentLess), "The noise has the stated scale")
    allowed = claim.upper - 1
    assert claim.measured == pytest.approx(0.99**2, abs=allowed)
    assert claim.lower - claim.measured > 5 * allowed
