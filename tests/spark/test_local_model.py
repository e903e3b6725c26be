"""Reports of the local model: one draw for each record by its identifier, nothing else kept."""

import json
import math
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from releases import KEY, entries

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.conversions import pure_to_rho_upper
from spark_dphist.accounting.ledger import (
    BudgetExceededError,
    Caps,
    Ledger,
    LedgerBusyError,
    ReleaseConflictError,
)
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.local import UnaryEncoding
from spark_dphist.local_collection import LocalRequest, collect_locally
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.local_reports import category_of, public_domain, randomise
from spark_dphist.spark.storage import PathTarget, TableTarget
from spark_dphist.streams import ReleaseKey

HELD = {"car": 3000, "bus": 1500, None: 400, "sled": 0}
DOMAIN = KeySet.product({"vehicle": list(HELD)})
OTHER_KEY = ReleaseKey.fixed_for_tests(b"\x05" * 32)


@pytest.fixture(scope="module")
def trips(spark):
    rows = [(f"device {n}-{name}", name) for name, held in HELD.items() for n in range(held)]
    return spark.createDataFrame(rows, "device string, vehicle string")


def request_for(folder, records, **changes):
    release_id = changes.get("release_id", "l1")
    settings = {
        "records": records,
        "input": "test trips",
        "identifier": "device",
        "columns": ["vehicle"],
        "domain": DOMAIN,
        "response": "local_randomised_response",
        "epsilon": 1.0,
        "reports": PathTarget(f"{folder}/reports", release_id),
        "output": PathTarget(f"{folder}/counts", release_id),
        "audit_header": PathTarget(f"{folder}/counts_audit_header", release_id),
        "release_id": release_id,
    }
    return LocalRequest(**{**settings, **changes})


def prepared(spark, records):
    fields = [records.schema["vehicle"]]
    return records.schema["device"], public_domain(spark, DOMAIN, fields)


def test_a_report_depends_on_identifier_value_and_key_alone(spark, trips):
    identifier, domain = prepared(spark, trips)
    response = UnaryEncoding(epsilon=1.0, categories=domain.size, optimised=True)
    some = spark.createDataFrame([(str(n), "car") for n in range(200)], trips.schema)

    def drawn(frame, key=KEY):
        rows = randomise(spark, frame, identifier, domain, response, key).collect()
        assert rows[0].__fields__ == ["report"]
        return sorted(map(str, (row.report for row in rows)))

    whole = drawn(some)
    assert len(whole) == 200
    assert drawn(some.repartition(5)) == whole
    assert drawn(some, OTHER_KEY) != whole
    assert drawn(some.where("device = '7'"))[0] in whole


@pytest.mark.parametrize(
    "name",
    [
        "local_randomised_response",
        "local_symmetric_unary_encoding",
        "local_optimised_unary_encoding",
    ],
)
def test_a_collection_publishes_reports_and_estimates_near_the_truth(spark, trips, tmp_path, name):
    request = request_for(tmp_path, trips, response=name, epsilon=2.0)
    made = collect_locally(spark, request, key=KEY)
    assert made.reports.columns == ["report"]
    assert made.reports.count() == sum(HELD.values())
    rows = {row.vehicle: row for row in made.counts.collect()}
    assert set(rows) == set(HELD)
    for vehicle, held in HELD.items():
        row = rows[vehicle]
        # The key is fixed; 5 standard errors would be passed once in a million keys.
        assert abs(row.noisy_count - held) < 5 * row.standard_error
        assert 0 <= row.lower <= row.upper <= sum(HELD.values())
    header = made.header
    assert header.mechanism == name
    assert header.privacy_unit.startswith("local: one report")
    assert header.neighbouring == "local: replace the value of one report"
    assert (header.epsilon, header.relative_error) == (2.0, None)
    assert header.worst_case_rho == pure_to_rho_upper(2.0)
    assert header.attacker_accuracy == pytest.approx(math.exp(2) / (1 + math.exp(2)))
    parameters = json.loads(header.parameters)
    assert (parameters["model"], parameters["epsilon_per_report"]) == ("local", 2.0)
    assert parameters["reports"] == sum(HELD.values())
    assert header.fixed_release_key
    assert entries(tmp_path) == {"reports", "counts", "counts_audit_header"}


def test_the_reports_are_as_frequent_as_the_response_says(spark, trips):
    identifier, domain = prepared(spark, trips)
    response = UnaryEncoding(epsilon=1.0, categories=domain.size, optimised=False)
    cars = trips.where("vehicle = 'car'")
    rows = randomise(spark, cars, identifier, domain, response, KEY).collect()
    bits = np.array([row.report for row in rows])
    own, other = map(float, response.support_probabilities)
    position = category_of(spark, domain, ["car"])
    expected = np.full(domain.size, other)
    expected[position] = own
    # Five standard deviations of 3,000 bits.
    np.testing.assert_allclose(bits.mean(axis=0), expected, atol=5 * 0.5 / math.sqrt(3000))


@pytest.mark.parametrize(
    ("name", "files"), [("local_randomised_response", 1), ("local_symmetric_unary_encoding", 3)]
)
def test_stored_files_and_their_order_depend_on_the_reports_alone(
    spark, tmp_path, settings, name, files
):
    """At an epsilon of 32 all reports tell the truth, so both collections have the same ones."""
    domain = KeySet.product({"vehicle": [f"v{n}" for n in range(20)]})
    sizes = [1 + 7 * n for n in range(20)]
    rows = [(f"{n} {k}", f"v{n}") for n, size in enumerate(sizes) for k in range(size)]
    # Other identifiers, and values in another order and in other partitions.
    others = [(f"device {n} {k}", f"v{n}") for k in range(200) for n in range(20) if k < sizes[n]]

    def stored(folder, rows, partitions):
        records = spark.createDataFrame(rows, "device string, vehicle string")
        changes = {"response": name, "epsilon": 32.0, "domain": domain, "files": files}
        uneven = {
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
        }
        with settings(uneven):
            request = request_for(folder, records.repartition(partitions), **changes)
            collect_locally(spark, request, key=KEY)
        paths = sorted((folder / "reports").glob("part-*"))
        return [pq.read_table(path)["report"].to_pylist() for path in paths]

    one, other = stored(tmp_path / "one", rows, 2), stored(tmp_path / "other", others, 5)
    assert [len(each) for each in one] == [len(each) for each in other]
    assert len(one) == files
    assert sum(map(len, one)) == len(rows)
    assert one == other


def test_a_value_outside_the_domain_is_refused_or_reported_as_the_stated_one(spark, tmp_path):
    rows = [(str(n), "car" if n % 2 else "unicorn") for n in range(1000)]
    records = spark.createDataFrame(rows, "device string, vehicle string")
    with pytest.raises(ReleaseError, match="a value lies outside the domain") as raised:
        collect_locally(spark, request_for(tmp_path, records), key=KEY)
    assert "unicorn" not in str(raised.value)
    assert entries(tmp_path) == set()
    request = request_for(tmp_path, records, outside=["sled"], epsilon=8.0)
    rows = {row.vehicle: row for row in collect_locally(spark, request, key=KEY).counts.collect()}
    assert rows["sled"].noisy_count == pytest.approx(500, abs=10)
    with pytest.raises(ConfigurationError, match="is not a value of the domain"):
        collect_locally(spark, request_for(tmp_path / "x", records, outside=["cart"]))


def test_a_record_without_an_identifier_of_its_own_is_refused(spark, tmp_path):
    for second, reason in (("'1'", "have the same identifier"), ("NULL", "has no identifier")):
        records = spark.sql(
            f"SELECT '1' AS device, 'car' AS vehicle UNION ALL SELECT {second}, 'bus'"
        )
        with pytest.raises(ReleaseError, match=reason):
            collect_locally(spark, request_for(tmp_path, records))
    assert entries(tmp_path) == set()


def test_a_ledger_of_reports_is_charged_before_anything_is_read(spark, trips, tmp_path):
    unreadable = trips.where("raise_error('read') IS NULL")
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.add_dataset("people", Caps.of(rho=10))
        ledger.add_dataset("trips", Caps.of(rho="0.5"), privacy_unit="report")
        out = tmp_path / "out"
        out.mkdir()
        with pytest.raises(ConfigurationError, match="accounted for 'report'"):
            collect_locally(spark, request_for(out, unreadable, dataset="people"), ledger=ledger)
        made = collect_locally(
            spark, request_for(out, trips, dataset="trips"), ledger=ledger, key=KEY
        )
        charged = ledger.release("l1")
        assert charged.rho == Rho.upper(pure_to_rho_upper(1.0))
        assert charged.cost.pure_epsilon == 1.0
        assert charged.output == {"counts_digest": made.header.counts_digest}
        # Asked again it hands out what is stored.
        again = collect_locally(spark, request_for(out, unreadable, dataset="trips"), ledger=ledger)
        assert again.header == made.header
        other = request_for(tmp_path / "other", unreadable, dataset="trips", release_id="l2")
        with pytest.raises(BudgetExceededError):
            collect_locally(spark, other, ledger=ledger)
    assert entries(tmp_path / "other") == set()


@pytest.fixture
def charged(tmp_path):
    """A ledger that lets a few collections be made, and a folder for them."""
    (tmp_path / "out").mkdir()
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.add_dataset("trips", Caps.of(rho=5), privacy_unit="report")
        yield ledger, tmp_path / "out"


def test_nothing_is_charged_where_executors_cannot_make_the_reports(
    spark, trips, charged, monkeypatch
):
    ledger, out = charged

    def refuse(_):
        raise ConfigurationError("the executors lack spark_dphist")

    monkeypatch.setattr("spark_dphist.local_collection.check_executors", refuse, raising=False)
    with pytest.raises(ConfigurationError, match="the executors lack"):
        collect_locally(spark, request_for(out, trips, dataset="trips"), ledger=ledger)
    assert ledger.find("l1") is None


def test_no_output_replaces_the_input_table(spark, trips, tmp_path):
    output = TableTarget("default.trips", "l1", mode="overwrite")
    request = request_for(tmp_path, trips, output=output, input_table="trips")
    with pytest.raises(ConfigurationError, match="is the input itself"):
        collect_locally(spark, request)


def test_a_failure_to_clean_up_is_told_beside_the_failure_itself(
    spark, trips, tmp_path, monkeypatch
):
    def fail(*_):
        raise OSError("device 7 is read-only")

    monkeypatch.setattr(PathTarget, "discard", fail)
    broken = trips.where("raise_error(device) IS NULL")
    with pytest.raises(ReleaseError, match="could not be removed: remove it by hand") as raised:
        collect_locally(spark, request_for(tmp_path, broken))
    assert "device " not in str(raised.value)
    assert raised.value.__suppress_context__


def test_counts_that_were_changed_since_the_commit_are_not_handed_out(spark, charged):
    ledger, out = charged
    records = spark.createDataFrame([("1", "car"), ("2", "bus")], "device string, vehicle string")
    request = request_for(out, records, dataset="trips")
    made = collect_locally(spark, request, ledger=ledger)
    changed = collect_arrow(made.counts.withColumn("noisy_count", F.col("noisy_count") + 1))
    shutil.rmtree(out / "counts")
    other = PathTarget(f"{out}/counts", "other")
    other.stage_arrow(spark, changed)
    other.publish(spark)
    with pytest.raises(ReleaseError, match="they were changed or replaced since"):
        collect_locally(spark, request, ledger=ledger)


@pytest.mark.parametrize(
    ("error", "told", "left"),
    [
        (LedgerBusyError("The ledger is busy."), "did not confirm it: The ledger is busy", True),
        (ReleaseConflictError("It was aborted."), "may not be shown: It was aborted", False),
    ],
)
def test_a_commit_that_fails_publishes_nothing_and_says_what_to_do(
    spark, charged, monkeypatch, error, told, left
):
    ledger, out = charged
    records = spark.createDataFrame([("1", "car"), ("2", "bus")], "device string, vehicle string")

    def fail(*_):
        raise error

    monkeypatch.setattr(Ledger, "commit", fail)
    with pytest.raises(ReleaseError, match=f"collection 'l1' .*{told}"):
        collect_locally(spark, request_for(out, records, dataset="trips"), ledger=ledger)
    staged = {f"{name}.staging-l1" for name in ("reports", "counts", "counts_audit_header")}
    assert entries(out) == (staged if left else set())


def test_a_collection_that_cannot_be_is_refused_before_anything_is_read(spark, trips, tmp_path):
    unreadable = trips.where("raise_error('read') IS NULL")
    for changes, message in (
        ({"identifier": "devise"}, "Did you mean 'device'"),
        ({"columns": ["vehicles"]}, "Did you mean 'vehicle'"),
        ({"domain": KeySet.product({"vehicle": ["car"]})}, "the domain has 1"),
        ({"epsilon": 0.0}, "epsilon must be a number"),
        ({"input_path": f"{tmp_path}/counts/trips"}, "lie in one another"),
        ({"files": 0}, "files must be an integer from 1 to 10,000, got 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            collect_locally(spark, request_for(tmp_path, unreadable, **changes))
    assert entries(tmp_path) == set()
