"""A learnt key set: drawn once, charged with its release, and never a group that is not there."""

import json
from dataclasses import replace

import numpy as np
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T
from releases import KEY, entries, request_for

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.ledger import BudgetExceededError, Caps, Ledger, ReleaseConflictError
from spark_dphist.accounting.policy import policy_cost, read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.config import load_configuration
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.from_config import request_from
from spark_dphist.metadata import metadata_json
from spark_dphist.release import run_release
from spark_dphist.spark.group_key import group_digest
from spark_dphist.spark.key_selection import select_keys
from spark_dphist.spark.key_set import KeySet, LearntKeys
from spark_dphist.spark.storage import PathTarget, TableTarget
from spark_dphist.spark.summary import summarised_by_spark
from spark_dphist.streams import GroupStreams, ReleaseKey

PLACE = [T.StructField("place", T.StringType())]
USER = T.StructField("user", T.LongType())
LEARN = KeySet.select(epsilon=1.0, delta=1e-8)
# At these epsilon and delta 41 units are kept surely, and one with probability 1e-8.
SIZES = {"many": 900, None: 450, "": 200, "forty-one": 41, "one": 1, "two": 2, "three": 3}
SURE = {"many", None, "", "forty-one"}


def visits(spark, sizes=SIZES):
    """One record for each user, who lies in one place."""
    frame = spark.createDataFrame(list(sizes.items()), "place string, n int")
    return frame.select("place", F.explode(F.sequence(F.lit(1), "n")).alias("number")).select(
        "place", F.xxhash64("place", "number").alias("user")
    )


def selected(records, selection, identifier=USER, key=KEY):
    rows = select_keys(records, PLACE, identifier, selection, key).collect()
    assert len({row.place for row in rows}) == len(rows)
    return {row.place for row in rows}


def learning(spark, folder, **changes):
    settings = {"records": visits(spark), "columns": ["place"], "key_set": LEARN, **changes}
    return request_for(spark, folder, **settings)


def test_what_is_kept_is_what_the_mechanism_draws_with_the_keys_of_the_groups(spark):
    sizes = {f"place {number}": 1 + number % 25 for number in range(400)}
    selection = KeySelection(epsilon=0.5, delta=1e-3)
    records = visits(spark, sizes)
    rows = (
        spark.createDataFrame([(place,) for place in sizes], "place string")
        .select("place", group_digest(PLACE).alias("digest"))
        .collect()
    )
    digests = np.array([list(row.digest) for row in rows], dtype=np.uint8)
    own_key = ReleaseKey.fixed_for_tests(KEY.derive(b"key-selection"))
    counts = np.array([sizes[row.place] for row in rows])
    drawn = selection.mechanism.keep(counts, GroupStreams(own_key, digests))
    expected = {row.place for row, kept in zip(rows, drawn, strict=True) if kept}
    assert 50 < len(expected) < 350
    assert selected(records.coalesce(1), selection) == expected
    assert selected(records.repartition(7), selection, None) == expected
    assert selected(records, selection, key=ReleaseKey.fixed_for_tests(b"\x01" * 32)) != expected


def test_a_unit_counts_once_in_a_group_and_in_so_many_groups_only(spark):
    # 5,000 records of one user in one place, and one user in 3,000 places.
    crowd = spark.range(5000).selectExpr("'one user' AS place", "7L AS user")
    traveller = spark.range(3000).selectExpr("concat('place ', id) AS place", "8L AS user")
    nobody = spark.range(5000).selectExpr("'nobody' AS place", "CAST(NULL AS bigint) AS user")
    records = visits(spark).union(crowd).union(traveller).union(nobody)
    for selection in (
        KeySelection(epsilon=1.0, delta=1e-8),
        KeySelection(epsilon=4.0, delta=1e-6, groups_per_unit=3),
    ):
        kept = selected(records, selection)
        assert kept >= {"many", None, ""}
        assert kept <= {*SURE}
    # With a delta of 1/2 even one user is kept half of the time, in at most k of these places.
    kept = selected(traveller, KeySelection(epsilon=1.0, delta=0.5))
    assert len(kept) <= 1
    assert len(selected(traveller, KeySelection(epsilon=1.0, delta=0.5, groups_per_unit=40))) <= 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("learnt")


@pytest.fixture(scope="module")
def ledger(folder):
    with Ledger.initialise(f"sqlite:///{folder}/ledger.db") as opened:
        opened.add_dataset("visits", Caps.of(rho=2, selection_delta="1e-8"), privacy_unit="user")
        yield opened


@pytest.fixture(scope="module")
def learnt_request(spark, folder):
    unit = PrivacyUnit(column="user", max_records=2)
    return learning(spark, folder / "out", dataset="visits", privacy_unit=unit)


@pytest.fixture(scope="module")
def learnt(spark, learnt_request, ledger):
    return run_release(spark, learnt_request, ledger=ledger, key=KEY)


def test_a_release_publishes_the_learnt_groups_with_their_counts(spark, learnt, learnt_request):
    counts = {row.place: row.noisy_count for row in learnt.counts.collect()}
    assert set(counts) == SURE
    assert 500 < counts["many"] < 1400
    stored = spark.read.parquet(learnt_request.learnt_keys.path)
    assert {row.place for row in stored.collect()} == SURE
    assert learnt.audit.header.key_set_size == len(SURE)
    declared = replace(
        learnt_request,
        output=replace(learnt_request.output, path=learnt_request.output.path + "_declared"),
        key_set=KeySet.from_dataframe(stored),
    )
    declared = replace(
        declared,
        audit_groups=declared.output.beside("_groups"),
        audit_header=declared.output.beside("_header"),
    )
    again = run_release(spark, declared, key=KEY)
    # A learnt key set is a public one for any later release, which pays for its counts alone.
    assert again.audit.header.key_set_digest == learnt.audit.header.key_set_digest
    assert again.audit.header.key_set_selection is None
    assert again.audit.header.worst_case_rho < learnt.audit.header.worst_case_rho


def test_audit_and_ledger_state_the_selection_apart_and_both_together(
    learnt, learnt_request, ledger
):
    header, request = learnt.audit.header, learnt_request
    assert json.loads(header.key_set_selection) == request.selection.parameters()
    assert json.loads(header.key_set_selection)["rho"] == request.selection.rho_upper
    both = read_worst_case(request.mechanism, request.privacy_unit, 1e-6, request.selection)
    alone = read_worst_case(request.mechanism, request.privacy_unit, 1e-6)
    assert header.worst_case_rho == both.rho > alone.rho + 0.46
    assert header.epsilon == both.epsilon > alone.epsilon
    charged = ledger.release("r1")
    assert charged.cost == request.cost()
    declared = policy_cost(request.mechanism, request.privacy_unit, {})
    assert charged.rho == declared.rho_upper + Rho.upper(request.selection.rho_upper)
    assert charged.cost.delta == Rho.upper("1e-8")
    assert charged.output["learnt_keys"] == request.learnt_keys.described
    assert ledger.balance("visits").selection.left == Rho(0)


def test_asking_again_hands_out_the_same_groups_without_reading(
    spark, learnt, learnt_request, ledger
):
    unreadable = learnt_request.records.where("raise_error('read') IS NULL")
    again = run_release(spark, replace(learnt_request, records=unreadable), ledger=ledger)
    assert again.audit.header == learnt.audit.header
    assert again.counts.orderBy("place").collect() == learnt.counts.orderBy("place").collect()
    other = replace(learnt_request, key_set=KeySet.select(epsilon=2.0, delta=1e-8))
    with pytest.raises(ReleaseConflictError, match="another policy; it differs in parameters"):
        run_release(spark, other, ledger=ledger)


@pytest.mark.usefixtures("learnt")
def test_nothing_is_read_where_the_ledger_does_not_allow_for_the_delta(
    spark, learnt_request, ledger, tmp_path
):
    unreadable = learnt_request.records.where("raise_error('read') IS NULL")
    request = learning(
        spark,
        tmp_path,
        records=unreadable,
        dataset="visits",
        release_id="r2",
        privacy_unit=learnt_request.privacy_unit,
    )
    before = ledger.balance("visits")
    with pytest.raises(BudgetExceededError, match="delta for learnt key sets"):
        run_release(spark, request, ledger=ledger)
    assert ledger.balance("visits") == before
    assert entries(tmp_path) == set()


def test_the_groups_are_drawn_once_and_stay_whatever_the_data_does_then(spark, tmp_path):
    folder = str(tmp_path / "evaluations")

    def grow(batches):
        import uuid
        from pathlib import Path

        Path(folder).mkdir(exist_ok=True)
        seen = len(list(Path(folder).iterdir()))
        Path(folder, uuid.uuid4().hex).touch()
        for batch in batches:
            # A group that is there at the first evaluation alone, another from the second one on.
            import pyarrow as pa

            names = ["gone later", "new later"]
            table = pa.Table.from_batches([batch])
            late = pa.table({"place": [names[min(seen, 1)]] * 500, "user": list(range(500))})
            yield from (
                pa.concat_tables([table, late.cast(table.schema)]).combine_chunks().to_batches()
            )

    records = visits(spark).coalesce(1).mapInArrow(grow, "place string, user bigint")
    release = run_release(spark, learning(spark, tmp_path / "out", records=records), key=KEY)
    counts = {row.place: row.noisy_count for row in release.counts.collect()}
    assert set(counts) == {*SURE, "gone later"}
    # It has no records any more when groups are counted.
    assert counts["gone later"] < 100
    assert len(list((tmp_path / "evaluations").iterdir())) == 2


def test_a_learnt_key_set_that_a_crash_left_staged_is_published_when_asked_again(
    spark, tmp_path, monkeypatch
):
    request = learning(spark, tmp_path / "out", dataset="visits")
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.add_dataset("visits", Caps.of(rho=2, selection_delta="1e-8"))

        def die(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PathTarget, "publish", die)
            with pytest.raises(KeyboardInterrupt):
                run_release(spark, request, ledger=ledger, key=KEY)
        unreadable = request.records.where("raise_error('read') IS NULL")
        release = run_release(spark, replace(request, records=unreadable), ledger=ledger)
    assert {row.place for row in release.counts.collect()} == SURE
    assert {row.place for row in request.learnt_keys.read(spark).collect()} == SURE


def test_where_no_group_is_kept_the_release_is_empty(spark, tmp_path):
    request = learning(spark, tmp_path, records=visits(spark, {"one": 1, "two": 2}))
    release = run_release(spark, request, key=KEY)
    assert release.counts.count() == 0
    assert release.audit.header.key_set_size == 0
    assert release.audit.to_pandas().empty
    assert json.loads(metadata_json(release.audit))["greatest_rho_at_noisy_count"] == 0
    assert release.total()["upper"].to_pylist() == [0]
    by_spark = summarised_by_spark(release.audit_table, PLACE, "rho_at_noisy_count")
    assert by_spark.least_rho_at_noisy_count == release.audit.header.least_rho_at_noisy_count == 0


def test_the_size_of_a_learnt_key_set_counts_each_group_once(spark):
    stored = spark.createDataFrame([("a",), ("b",), ("a",), (None,), (None,)], "place string")
    assert LearntKeys(KeySelection(epsilon=1.0, delta=1e-8), stored).size(spark, PLACE) == 3


def test_the_number_of_learnt_groups_is_not_told_before_the_release_is_committed(spark, tmp_path):
    steps = []
    run_release(spark, learning(spark, tmp_path), key=KEY, on_step=steps.append)
    assert "counting the learnt groups and adding noise" in steps
    assert not any(character.isdigit() for step in steps for character in step)


def test_a_failure_while_learning_publishes_nothing_and_leaves_nothing(spark, tmp_path):
    broken = visits(spark).where("raise_error(concat('user ', user)) IS NULL")
    with pytest.raises(ReleaseError, match="Nothing was published") as raised:
        run_release(spark, learning(spark, tmp_path, records=broken), key=KEY)
    assert "user -" not in str(raised.value)
    assert entries(tmp_path) == set()


def test_a_selection_that_cannot_be_is_refused_before_anything_is_read(spark, tmp_path, settings):
    several = KeySet.select(epsilon=1.0, delta=1e-8, groups_per_unit=3)
    with pytest.raises(ConfigurationError, match="each record is a privacy unit of its own"):
        run_release(spark, learning(spark, tmp_path, key_set=several))
    greedy = KeySet.select(epsilon=1.0, delta=1e-6)
    with pytest.raises(ConfigurationError, match="leaves nothing of the delta = 1e-06"):
        run_release(spark, learning(spark, tmp_path, key_set=greedy))
    times = visits(spark).selectExpr("current_timestamp() AS place", "user")
    with (
        settings({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}),
        pytest.raises(ConfigurationError, match="shortens the timestamps"),
    ):
        run_release(spark, learning(spark, tmp_path, records=times))
    # JSON and CSV cut timestamps and CSV trims text: the groups would not be found in the data.
    for output in (
        TableTarget("learnt_as_json", "r1", "json"),
        TableTarget("learnt_as_csv", "r1", "CSV"),
        PathTarget(str(tmp_path / "counts"), "r1", "csv", {"nullValue": "NULL"}),
    ):
        with pytest.raises(ConfigurationError, match="Use one of parquet, orc, delta, iceberg"):
            run_release(spark, learning(spark, tmp_path, output=output))
    assert entries(tmp_path) == set()


def test_a_configuration_learns_its_key_set(spark, tmp_path):
    visits(spark).write.parquet(str(tmp_path / "visits"))
    file = tmp_path / "release.toml"
    file.write_text(f"""
[input]
path = "{tmp_path}/visits"
[groups]
columns = ["place"]
[groups.keys.select]
epsilon = 1.0
delta = 1e-8
groups_per_unit = 2
[mechanism]
relative_error = 0.3
floor = 20
[privacy]
unit = "user"
[output]
path = "{tmp_path}/out/counts"
""")
    release = run_release(spark, request_from(spark, load_configuration(file)), key=KEY)
    groups = {row.place for row in release.counts.collect()}
    assert {"many", None, ""} <= groups <= SURE
    learnt = KeySelection(epsilon=1.0, delta=1e-8, groups_per_unit=2)
    assert json.loads(release.audit.header.key_set_selection) == learnt.parameters()
    published = {"counts", "counts_audit_groups", "counts_audit_header", "counts_key_set"}
    assert entries(tmp_path / "out") == published
