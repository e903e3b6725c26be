"""A unit's cost bounds every way its records can lie in groups, and is not far above the worst."""

import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dphist.accounting.conversions import pure_to_rho_upper
from spark_dphist.accounting.privacy_unit import MAX_RECORDS, PrivacyUnit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant, LinearLog, ShiftedLog
from spark_dphist.mechanisms.registry import calibrate

MECHANISMS = {
    "shifted log": ShiftedLog.calibrate(relative_error=0.3, floor=20),
    "shifted log, small shift": ShiftedLog.calibrate(relative_error=0.3, floor=20, shift=0.5),
    "linear log": LinearLog.calibrate(relative_error=0.3, floor=20),
    "linear log, floor of one": LinearLog.calibrate(relative_error=0.9, floor=1),
    "fixed Gaussian": calibrate("fixed_gaussian", relative_error=0.3, floor=20),
    "fixed Laplace": calibrate("fixed_laplace", relative_error=0.3, floor=20),
    "constant": Constant(floor=20),
}
SHAPES = {name: mechanism for name, mechanism in MECHANISMS.items() if name != "constant"}
EVERY_COUNT = np.concatenate([np.arange(400), np.geomspace(400, 1e9, 60).astype(np.int64)])
# The budget itself is evaluated in doubles.
ULPS = 1 + 2.0**-48


def unit_of(records, distinct=False):
    return PrivacyUnit(column="user", max_records=records, distinct=distinct)


def partitions(total, largest=None):
    """All ways to write a number as a sum, the parts falling."""
    if total == 0:
        yield ()
        return
    for part in range(min(total, largest or total), 0, -1):
        for rest in partitions(total - part, part):
            yield (part, *rest)


@cache
def greatest_budget(name, records, at_least=0):
    """sup of v_j(n) over the counts from one on, by looking at them."""
    counts = EVERY_COUNT[at_least <= EVERY_COUNT]
    return float(np.max(MECHANISMS[name].budget(counts, records)))


def worst_split(name, records, at_least=0):
    return max(
        sum(greatest_budget(name, part, at_least) for part in parts)
        for parts in partitions(records)
    )


def test_the_partitions_are_all_there():
    assert [len(list(partitions(n))) for n in range(1, 13)] == [
        1, 2, 3, 5, 7, 11, 15, 22, 30, 42, 56, 77,
    ]  # fmt: skip


@pytest.mark.parametrize("at_least", [0, 1, 5, 12, 100])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_no_split_of_a_units_records_costs_more_than_the_bound(name, at_least):
    for records in range(1, 13):
        bound = unit_of(records).rho_at_least_upper(MECHANISMS[name], [at_least])[0]
        worst = worst_split(name, records, at_least)
        # Discrete Laplace: each group's budget is rounded up on its own, their sum is not needed.
        assert worst <= bound * ULPS


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_bound_is_the_best_of_all_that_use_one_budget_per_record(name):
    for records in range(1, 13):
        bound = unit_of(records).worst_case_rho_upper(MECHANISMS[name])
        per_record = max(greatest_budget(name, part) / part for part in range(1, records + 1))
        assert bound <= records * per_record * ULPS
        # Where one group takes all records at the worst rate, nothing is given away.
        if greatest_budget(name, records) / records >= per_record / ULPS:
            assert bound == pytest.approx(greatest_budget(name, records), rel=1e-12)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 10**6)), min_size=1, max_size=8),
    st.integers(0, 1000),
)
def test_any_split_over_any_groups_is_bounded(name, split, at_least):
    records = sum(part for part, _ in split)
    bound = unit_of(records).rho_at_least_upper(MECHANISMS[name], [at_least])[0]
    total = sum(float(MECHANISMS[name].budget(at_least + count, part)) for part, count in split)
    assert total <= bound * ULPS


@pytest.mark.parametrize("records", [1, 2, 3, 12, 100, 511, 512, 513, 1000, 12345, MAX_RECORDS])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_bound_is_never_above_k_squared_times_one_record(name, records):
    mechanism = MECHANISMS[name]
    assert unit_of(records).worst_case_rho_upper(mechanism) <= (
        records**2 * float(mechanism.budget(0)) * ULPS
    )


@pytest.mark.parametrize("records", [1, 2, 10, 600, 1200, 50_000, MAX_RECORDS])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_bound_covers_all_records_in_one_group_and_in_as_many_groups(name, records):
    mechanism = MECHANISMS[name]
    bound = unit_of(records).worst_case_rho_upper(mechanism)
    together = float(np.max(mechanism.budget([0, records], records)))
    apart = records * float(mechanism.budget(0))
    assert max(together, apart) <= bound * ULPS


@pytest.mark.parametrize("records", [513, 700, 3000, 40_000])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_blocks_of_large_bounds_give_at_most_one_percent_away(name, records):
    mechanism = MECHANISMS[name]
    every = np.arange(1, records + 1)
    rates = [
        float(np.max(mechanism.budget([0, j], int(j)))) / j
        for j in (every if records < 1000 else np.unique(np.geomspace(1, records, 900).astype(int)))
    ]
    bound = unit_of(records).worst_case_rho_upper(mechanism)
    assert records * max(rates) <= bound * ULPS
    assert bound <= records * max(rates) * 1.02


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_bound_falls_with_the_size_of_the_groups_and_rises_with_the_records(name):
    counts = np.concatenate([np.arange(50), np.geomspace(50, 1e12, 60).astype(np.int64)])
    before = np.zeros(counts.size)
    for records in (1, 2, 3, 10, 600, 601, 700, 10_000):
        bounds = unit_of(records).rho_at_least_upper(MECHANISMS[name], counts)
        assert np.all(np.diff(bounds) <= bounds[:-1] * 2.0**-48)
        assert np.all(before <= bounds * ULPS)
        before = bounds


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_many_counts_at_once_give_what_each_gives_alone(name):
    unit, mechanism = unit_of(70), MECHANISMS[name]
    counts = [0, 1, 69, 70, 71, 5000]
    alone = [unit.rho_at_least_upper(mechanism, [count])[0] for count in counts]
    np.testing.assert_allclose(unit.rho_at_least_upper(mechanism, counts), alone, rtol=1e-15)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_distinct_units_cost_one_record_in_each_group(name):
    mechanism = MECHANISMS[name]
    bound = unit_of(40, distinct=True).worst_case_rho_upper(mechanism)
    assert bound == pytest.approx(40 * float(mechanism.budget(0)), rel=1e-12)
    assert bound >= 40 * float(mechanism.budget(0))
    assert bound <= unit_of(40).worst_case_rho_upper(mechanism) * ULPS


def test_a_record_as_its_own_unit_costs_the_budget_of_an_empty_group():
    for mechanism in MECHANISMS.values():
        bound = PrivacyUnit().worst_case_rho_upper(mechanism)
        assert bound == pytest.approx(float(mechanism.budget(0)), rel=1e-14)
        assert bound >= float(mechanism.budget(0))


def test_pure_noise_costs_no_more_than_its_epsilon_says():
    mechanism = MECHANISMS["fixed Laplace"]
    for records in (1, 7, 600, 10_000, MAX_RECORDS):
        allowed = pure_to_rho_upper(mechanism.pure_epsilon(records))
        assert unit_of(records).worst_case_rho_upper(mechanism) <= allowed


def test_a_constant_costs_nothing_however_many_records():
    assert unit_of(MAX_RECORDS).worst_case_rho_upper(MECHANISMS["constant"]) == 0


def test_the_largest_bound_is_computed_within_two_seconds():
    counts = np.geomspace(1, 1e12, 37).astype(np.int64)
    # Of the processor: other tests may run beside this one.
    start = time.process_time()
    for mechanism in MECHANISMS.values():
        unit_of(MAX_RECORDS).rho_at_least_upper(mechanism, counts)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("records", [0, -1, MAX_RECORDS + 1])
def test_a_bound_out_of_range_is_refused(records):
    with pytest.raises(ConfigurationError, match="max_records must be from 1 to 1,000,000, got"):
        unit_of(records)


@pytest.mark.parametrize("changes", [{"max_records": 2}, {"distinct": True}])
def test_more_than_one_record_needs_a_column(changes):
    with pytest.raises(ConfigurationError, match="need the column that identifies a unit"):
        PrivacyUnit(**changes)


def test_a_unit_says_in_words_what_it_protects():
    assert (PrivacyUnit().name, PrivacyUnit().described) == ("record", "record")
    assert unit_of(3).name == "user"
    assert unit_of(3).described == "all records of one 'user', of which at most 3 are counted"
    assert unit_of(3, distinct=True).described == (
        "all records of one 'user', counted once in each of at most 3 groups"
    )
    assert (unit_of(3).records_per_group, unit_of(3, distinct=True).records_per_group) == (3, 1)
