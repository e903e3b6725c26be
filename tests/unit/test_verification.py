"""The shipped mechanisms withstand verification; each broken one fails the claim it breaks.

Fixed key. With a fresh one a correct mechanism would fail a run with probability at most 1e-6.
"""

from __future__ import annotations

import json

import broken_mechanisms as broken
import pytest
from broken_mechanisms import broken_version

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant, FixedGaussian, FixedLaplace, LinearLog, ShiftedLog
from spark_dphist.streams import ReleaseKey
from spark_dphist.verification import verify

KEY = ReleaseKey.fixed_for_tests(b"verification of one mechanism...")
FEW = 2**13
MANY = 2**16

PROMISE = "The expected error is below"
KEPT = "Published numbers keep the promise"
STATED_ERROR = "The stated expected error is not below the true one"
COVERAGE = "Intervals contain the true count"
COVERS = "The stated budget covers both neighbours"
WORST_CASE = "The worst case covers all of a unit's records"
NEVER_RISES = "The budget of one record never rises"
LIMIT = "n² v(n) approaches"
ENCODING = "What a group's count is encoded as"
SCALE = "The noise has the stated scale"
SHAPE = "The noise has the stated distribution"
SAME = "The noise is the same at every count"
SHARED = "Groups do not share noise"
OF_THE_GROUP = "A group's noise depends on the release key and the group alone"
ATTACKER = "No attacker tells neighbouring counts apart"
CLOSE = "Neighbouring counts are (epsilon, delta)-close"
DISTANT = "Counts further apart are as close as claimed"
PUBLISHED = "Published numbers give away no more"


def verification(mechanism, relative_error=0.1, draws=FEW, **options):
    return verify(mechanism, relative_error=relative_error, key=KEY, draws=draws, **options)


def failed(verified):
    return {claim.claim for claim in verified.claims if not claim.passed}


def fails(verified, *beginnings):
    return all(any(text.startswith(start) for text in failed(verified)) for start in beginnings)


@pytest.mark.parametrize(
    ("kind", "relative_error", "floor"),
    [
        (ShiftedLog, 0.1, 50),
        (ShiftedLog, 0.9, 1),
        (LinearLog, 0.1, 50),
        (LinearLog, 0.3, 7.5),
        (FixedGaussian, 0.1, 50),
        (FixedGaussian, 0.05, 1),
        (FixedLaplace, 0.1, 50),
        (FixedLaplace, 0.02, 1),
        (Constant, 1.5, 20),
    ],
)
def test_the_shipped_mechanisms_withstand(kind, relative_error, floor):
    mechanism = kind.calibrate(relative_error=relative_error, floor=floor)
    verified = verification(mechanism, relative_error)
    assert failed(verified) == set()
    assert verified.passed
    assert verified.false_alarm_rate <= 1e-6 * (1 + 1e-9)


@pytest.mark.parametrize("kind", [ShiftedLog, LinearLog, FixedGaussian, FixedLaplace])
@pytest.mark.parametrize("distinct", [False, True])
def test_units_of_several_records_withstand(kind, distinct):
    unit = PrivacyUnit(column="user", max_records=5, distinct=distinct)
    mechanism = kind.calibrate(relative_error=0.2, floor=30)
    assert failed(verification(mechanism, 0.2, unit=unit)) == set()


@pytest.mark.parametrize("drift", ["median_unbiased", "unbiased"])
def test_other_drifts_and_doubles_withstand(drift):
    mechanism = ShiftedLog.calibrate(relative_error=0.3, floor=10, drift=drift)
    assert failed(verification(mechanism, 0.3, rounding="none", confidence=0.5)) == set()


BROKEN = [
    (broken.HalfNoiseShiftedLog, FEW, [SCALE, SHAPE, SAME, ATTACKER, DISTANT, PUBLISHED]),
    (broken.HalfNoiseLinearLog, FEW, [SCALE, SHAPE, SAME, DISTANT, PUBLISHED]),
    (broken.HalfNoiseFixedGaussian, FEW, [SCALE, SHAPE, SAME, DISTANT, PUBLISHED]),
    (broken.HalfNoiseFixedLaplace, FEW, [SCALE, SHAPE, SAME, ATTACKER, DISTANT, PUBLISHED]),
    (broken.OnePercentLess, MANY, [SCALE]),
    (broken.OnePercentMore, MANY, [SCALE]),
    (broken.OnePercentLessLaplace, MANY, [SCALE]),
    (broken.CutTails, MANY, [SAME]),
    (broken.CoarseNoise, FEW, [ATTACKER, CLOSE]),
    (broken.DriftInTheNoise, FEW, [SHAPE, SAME]),
    (broken.DriftInTheEncoding, FEW, [COVERS, WORST_CASE]),
    (broken.CentredEncoding, FEW, [ENCODING]),
    (broken.SharedNoise, FEW, [SHARED]),
    (broken.NoiseOfTheRow, FEW, [OF_THE_GROUP]),
    (broken.BudgetOfTheWrongNeighbour, FEW, [COVERS]),
    (broken.BudgetWithoutRounding, FEW, [COVERS]),
    (broken.BudgetTooSmallForGiants, FEW, [COVERS]),
    (broken.RisingBudget, FEW, [NEVER_RISES]),
    (broken.FlatteredError, MANY, [STATED_ERROR]),
    (broken.NarrowInterval, MANY, [COVERAGE]),
    (broken.LeakyDecoder, FEW, [PUBLISHED]),
]


@pytest.mark.parametrize(
    ("kind", "draws", "beginnings"), BROKEN, ids=[kind.__name__ for kind, _, _ in BROKEN]
)
def test_a_broken_mechanism_fails_what_it_breaks(kind, draws, beginnings):
    verified = verification(broken_version(kind, 0.1, 50), draws=draws)
    assert not verified.passed
    assert fails(verified, *beginnings), failed(verified)


@pytest.mark.parametrize(
    "kind", [broken.DriftInTheNoise, broken.BudgetWithoutRounding, broken.BudgetTooSmallForGiants]
)
def test_what_is_not_broken_is_not_blamed(kind):
    verified = verification(broken_version(kind, 0.1, 50))
    assert not fails(verified, PROMISE)
    assert not fails(verified, OF_THE_GROUP)
    assert not fails(verified, SHARED)


def test_a_budget_for_one_record_does_not_cover_a_unit_with_several():
    mechanism = broken_version(broken.BudgetOfOneRecord, 0.1, 50)
    assert verification(mechanism).passed
    unit = PrivacyUnit(column="user", max_records=5)
    assert fails(verification(mechanism, unit=unit), COVERS)


def test_rounding_that_breaks_the_promise_is_noticed_by_closed_form_and_by_simulation():
    policy = {"relative_error": 0.8, "floor": 1, "shift": 0.01, "method": "closed_form"}
    honest = ShiftedLog.calibrate(**policy)
    assert fails(verification(honest, 0.8), PROMISE)
    assert verification(honest, 0.8, rounding="none").passed
    silent = verification(broken_version(broken.RoundingIgnored, **policy), 0.8, draws=MANY)
    assert not fails(silent, PROMISE)
    assert fails(silent, KEPT, STATED_ERROR)


def test_noise_that_nobody_states_is_not_verified():
    class Nameless(Constant):
        noise = FixedGaussian(scale=3.0, floor=20).noise

    with pytest.raises(ConfigurationError, match="does not state its noise"):
        verification(Nameless(floor=20), 1.5)


def test_the_same_key_gives_the_same_evidence_and_another_one_does_not():
    mechanism = ShiftedLog.calibrate(relative_error=0.1, floor=50)
    first, again = verification(mechanism), verification(mechanism)
    fresh = verify(mechanism, relative_error=0.1, draws=FEW)
    assert first == again
    assert first.fixed_release_key
    assert not fresh.fixed_release_key
    measured = [claim.measured for claim in first.claims if claim.false_alarm_rate]
    assert measured != [claim.measured for claim in fresh.claims if claim.false_alarm_rate]


def test_programs_get_every_claim_with_its_bounds():
    verified = verification(ShiftedLog.calibrate(relative_error=0.1, floor=50))
    read = json.loads(verified.to_json())
    assert read["passed"] is True
    assert read["mechanism"] == "shifted_log"
    assert read["fixed_release_key"] is True
    assert len(read["claims"]) == len(verified.claims)
    for shown, claim in zip(read["claims"], verified.claims, strict=True):
        assert shown["measured"] == claim.measured
        assert shown["passed"] is claim.passed
        assert (shown["lower"] is None) or shown["lower"] <= shown["measured"]
        assert shown["claim"]
        assert shown["how"]
