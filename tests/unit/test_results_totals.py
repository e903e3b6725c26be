"""Totals of released counts: one number for each combination, and an interval around the truth."""

import math

import numpy as np
import pyarrow as pa
import pytest
from mpmath import mp
from released_counts import draw, released_audit
from scipy.stats import norm

from spark_dphist.audit import PublicAudit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, Constant, FixedGaussian, LinearLog, ShiftedLog
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.results.intervals import PublishedIntervals
from spark_dphist.results.sum_statistics import Chances, sum_statistic
from spark_dphist.results.totals import totals

NAMES = ["shifted_log", "linear_log", "fixed_gaussian", "fixed_laplace"]
KEYS = {
    "city": ["Oslo", "Oslo", None, None, "Rome", "Rome"],
    "month": pa.array([1, 2, 1, 2, 1, None], pa.int32()),
}
COUNTS = np.array([1000, 40, 0, 300, 7, 90_000])


def mechanism_of(name, relative_error=0.1, floor=50):
    return calibrate(name, relative_error=relative_error, floor=floor)


@pytest.mark.parametrize("name", NAMES)
def test_totals_add_the_released_counts_of_each_combination(name):
    audit = released_audit(mechanism_of(name), KEYS, COUNTS, "a")
    noisy = audit.groups["noisy_count"].to_numpy()
    by_city = totals(audit, by="city")
    assert by_city.column_names == ["city", "groups", "noisy_total", "estimate", "lower", "upper"]
    rows = {row["city"]: row for row in by_city.to_pylist()}
    assert list(rows) == ["Oslo", "Rome", None]
    assert {city: row["noisy_total"] for city, row in rows.items()} == {
        "Oslo": noisy[0] + noisy[1],
        None: noisy[2] + noisy[3],
        "Rome": noisy[4] + noisy[5],
    }
    assert {row["groups"] for row in rows.values()} == {2}
    by_month = totals(audit, by=["month"])
    assert by_month["groups"].to_pylist() == [3, 2, 1]
    (everything,) = totals(audit).to_pylist()
    assert everything["groups"] == 6
    assert everything["noisy_total"] == noisy.sum()


@pytest.mark.parametrize("name", [*NAMES, "constant"])
@pytest.mark.parametrize("rounding", ["nearest", "none"])
def test_the_total_of_no_groups_is_0_for_certain(name, rounding):
    mechanism = mechanism_of(name, relative_error=1.0 if name == "constant" else 0.1)
    full = released_audit(mechanism, KEYS, COUNTS, "e", rounding=rounding)
    audit = PublicAudit(full.header, full.groups.slice(0, 0))
    everything = totals(audit)
    assert everything.schema.equals(totals(full).schema)
    assert everything.to_pylist() == [
        {"groups": 0, "noisy_total": 0, "estimate": 0, "lower": 0, "upper": 0}
    ]
    assert totals(audit, by="city").num_rows == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rounding", ["nearest", "none"])
def test_the_total_of_one_group_has_the_published_interval(name, rounding):
    audit = released_audit(mechanism_of(name), KEYS, COUNTS, "b", rounding=rounding)
    single = totals(audit, by=["month", "city"]).sort_by("noisy_total")
    groups = audit.groups.sort_by("noisy_count")
    for bound in ("lower", "upper"):
        assert single[bound].to_numpy() == pytest.approx(groups[bound].to_numpy(), rel=1e-9)
        assert single.schema.field(bound).type == groups.schema.field(bound).type


@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_the_estimate_and_widen_with_the_confidence(name):
    counts = np.arange(0, 3000, 3)
    audit = released_audit(mechanism_of(name), {"x": counts}, counts, "c")
    narrow, wide = (totals(audit, confidence=each).to_pylist()[0] for each in (0.5, 0.999))
    for row in (narrow, wide):
        assert 0 <= row["lower"] <= row["estimate"] <= row["upper"]
    assert wide["lower"] < narrow["lower"] < narrow["upper"] < wide["upper"]


@pytest.mark.parametrize("name", ["shifted_log", "linear_log"])
def test_an_interval_of_many_groups_is_far_narrower_than_the_sum_of_theirs(name):
    counts = np.full(2000, 1000)
    audit = released_audit(mechanism_of(name), {"x": np.arange(2000)}, counts, "d")
    (row,) = totals(audit).to_pylist()
    added = np.sum(audit.groups["upper"].to_numpy() - audit.groups["lower"].to_numpy())
    assert row["upper"] - row["lower"] < added / 20
    # Not far above what is possible: the standard deviation of an unbiased sum, twice 1.96 times.
    sigma = mechanism_of(name).sigma
    ideal = 2 * 1.96 * 1000 * math.sqrt(2000 * math.expm1(sigma**2))
    assert row["upper"] - row["lower"] < 1.6 * ideal


@pytest.mark.parametrize("name", ["shifted_log", "linear_log"])
def test_the_bias_of_the_released_counts_is_not_in_the_interval_nor_in_the_estimate(name):
    # sigma² / 2 of each count, many times the interval's width for so many groups.
    mechanism, counts = mechanism_of(name, 0.3, 20), np.full(20_000, 1000)
    (row,) = totals(released_audit(mechanism, {"x": counts}, counts, "e")).to_pylist()
    truth = counts.sum()
    assert row["lower"] <= truth <= row["upper"]
    assert row["noisy_total"] < row["lower"]
    assert row["noisy_total"] / truth == pytest.approx(
        1 + float(mechanism.expected_bias(1000)) / 1000, abs=0.01
    )
    assert row["estimate"] / truth == pytest.approx(1, abs=0.01)


def test_a_sparse_total_is_not_the_sum_of_what_clipping_added():
    mechanism, counts = mechanism_of("linear_log"), np.zeros(5000, int)
    counts[::100] = 30
    (row,) = totals(released_audit(mechanism, {"x": np.arange(5000)}, counts, "f")).to_pylist()
    assert row["noisy_total"] > 5 * counts.sum()
    assert row["lower"] <= counts.sum() <= row["upper"] < row["noisy_total"]


def test_a_constant_says_nothing_of_a_total():
    audit = released_audit(Constant(floor=20), KEYS, COUNTS, "g", rounding="none")
    (row,) = totals(audit).to_pylist()
    assert (row["noisy_total"], row["lower"], row["upper"]) == (60, 0, 6 * MAX_COUNT)


@pytest.mark.parametrize("name", NAMES)
def test_counts_at_the_ends_of_the_range_have_totals(name):
    for counts in ([0, 0, 0], [MAX_COUNT] * 3, [0, MAX_COUNT, 5]):
        audit = released_audit(mechanism_of(name), {"x": [1, 2, 3]}, counts, "h")
        (row,) = totals(audit).to_pylist()
        assert row["lower"] <= sum(counts) <= row["upper"]


@pytest.mark.parametrize(
    ("by", "confidence", "message"),
    [
        ("citty", 0.95, r"'citty' is not a group column .* Did you mean 'city'"),
        (["city", "city"], 0.95, "'city' is named twice"),
        ("city", 1, "confidence must be strictly between"),
    ],
)
def test_what_makes_no_total_is_refused(by, confidence, message):
    audit = released_audit(mechanism_of("shifted_log"), KEYS, COUNTS, "i")
    with pytest.raises(ConfigurationError, match=message):
        totals(audit, by, confidence=confidence)


def test_an_audit_without_groups_is_refused():
    audit = released_audit(mechanism_of("shifted_log"), KEYS, COUNTS, "j")
    with pytest.raises(ConfigurationError, match="comes without its 6 groups"):
        totals(PublicAudit(audit.header, None))


# The parts, against independent numbers


@pytest.mark.parametrize("rounding", ["nearest", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_intervals_at_another_confidence_are_those_of_the_mechanism(name, rounding):
    mechanism, counts = mechanism_of(name), np.repeat([0, 3, 60, 5000], 50)
    got = draw(mechanism, counts, "k", rounding=rounding)
    other = draw(mechanism, counts, "k", rounding="none", confidence=0.999)
    recovered = PublishedIntervals(
        mechanism, got.lower.astype(float), got.upper.astype(float), 0.95, rounding == "nearest"
    )
    low, high = recovered.at(0.999)
    assert np.all(low <= other.lower * (1 + 1e-9))
    assert np.all(high >= other.upper * (1 - 1e-9))
    # One count of rounding, on the scale of the bound.
    unclipped = got.upper > 0
    slack = 4.0 if rounding == "nearest" else 1e-3
    assert np.all((high - other.upper)[unclipped] <= slack * (1 + 1e-9 * high[unclipped]))
    assert np.all((other.lower - low)[unclipped] <= slack)


@pytest.mark.parametrize("kind", [ShiftedLog, LinearLog])
def test_the_stated_biases_bound_the_integral_of_the_estimate(kind):
    mechanism = kind.calibrate(relative_error=0.3, floor=20)
    statistic, scales = sum_statistic(mechanism), 1.96
    mp.dps = 20
    sigma = mp.mpf(mechanism.sigma)
    for count in (0, 3, 15, 25, 60, 1000):
        if kind is ShiftedLog:
            place, base = mp.log(count + mechanism.shift), mp.log(mechanism.shift)
            bends = [base]
        else:
            ratio = count / mp.mpf(mechanism.knee)
            place = ratio if ratio <= 1 else 1 + mp.log(ratio)
            base, bends = mp.mpf(0), [mp.mpf(0), mp.mpf(1), 1 + sigma**2 / 2]

        def estimate(z, place=place, base=base):
            y = max(place + sigma * z, base - scales * sigma)
            if kind is ShiftedLog:
                return mp.exp(y - sigma**2 / 2) - mechanism.shift
            if y <= 1:
                return mechanism.knee * y
            return mechanism.knee * max(mp.exp(y - 1 - sigma**2 / 2), 1)

        ends = [(bend - place) / sigma for bend in [*bends, base - scales * sigma]]
        cuts = sorted([-12, 12, *[end for end in ends if -12 < end < 12]])
        exact = mp.quad(lambda z, f=estimate: f(z) * mp.npdf(z), cuts) - count
        low = np.array([float(count)])
        least, greatest = (float(each[0]) for each in statistic._bias(low, low, scales))
        assert least - 1e-6 <= exact <= greatest + 1e-6
        assert greatest - least < 0.02 * mechanism.floor


@pytest.mark.parametrize("kind", [ShiftedLog, LinearLog])
def test_deviations_of_one_group_are_beyond_the_bounds_less_often_than_allowed(kind):
    mechanism = kind.calibrate(relative_error=0.3, floor=20)
    statistic = sum_statistic(mechanism)
    z = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    moved = statistic._deviation(z)
    moved -= moved.mean()
    for chance in (0.2, 0.02, 0.002):
        below = math.sqrt(-2 * math.log(chance) * statistic._variance_below)
        above = float(statistic._above(np.array([1.0]), -math.log(chance), 8.0)[0])
        assert np.mean(moved < -below) <= chance
        assert np.mean(moved > above) <= chance
        assert above < 10 * moved.std()


def test_the_laplace_bound_is_chernoffs_of_the_generating_function():
    mechanism = calibrate("fixed_laplace", relative_error=0.1, floor=50)
    chances = Chances(scales=4.0, tail=0.01, spread=0.01)
    zeros = np.zeros((1, 40))
    published = PublishedIntervals(mechanism, zeros, zeros + 1000, 0.95, True)
    above = float(sum_statistic(mechanism).evidence(published, zeros, zeros, chances).above[0])
    epsilon = mechanism.epsilon
    k = np.arange(-1500, 1501)
    probability = np.exp(-epsilon * np.abs(k))
    probability /= probability.sum()

    def bound(s):
        return (40 * math.log(np.sum(probability * np.exp(s * k))) - math.log(0.01)) / s

    best = min(bound(s) for s in np.linspace(0.02, 0.9, 200) * epsilon)
    assert above == pytest.approx(best, rel=1e-3)


def test_the_gaussian_bound_grows_with_the_root_of_the_number_of_groups():
    mechanism = FixedGaussian(scale=10.0, floor=50)
    chances = Chances(scales=4.0, tail=0.01, spread=0.01)
    for groups in (1, 100):
        flat = np.full((1, groups), 500.0)
        published = PublishedIntervals(mechanism, flat, flat, 0.95, True)
        evidence = sum_statistic(mechanism).evidence(published, flat, flat, chances)
        assert evidence.below == pytest.approx(10 * math.sqrt(2 * groups * math.log(100)), rel=1e-5)
