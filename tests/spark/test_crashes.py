"""Releases killed with SIGKILL: nothing is shown uncharged, and nothing charged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from crash_worker import crash_request
from releases import confidential_records, entries
from waiting import wait_for

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.ledger import Caps, HalfDoneReleaseError, Ledger, State, commands
from spark_dphist.errors import ReleaseError
from spark_dphist.release import run_release

WORKER = Path(__file__).with_name("crash_worker.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("crashes")
    with Ledger.initialise(f"sqlite:///{made}/ledger.db") as ledger:
        ledger.add_dataset("flights", Caps.of(rho=100))
    return made


@pytest.fixture
def ledger(folder):
    with Ledger(f"sqlite:///{folder}/ledger.db") as opened:
        yield opened


@pytest.fixture
def crash(classic_only, spark, folder, ledger):  # noqa: ARG001
    """Run a release in a process of its own that is killed, and look at what it left."""

    def run(where, *more, own_jvm=False):
        release_id = f"{where}-{len(ledger.releases())}"
        spent = ledger.balance("flights").spent
        parameters = spark.sparkContext._gateway.gateway_parameters
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(WORKER.parent), str(WORKER.parents[2])]),
        }
        if not own_jvm:
            environment["PYSPARK_GATEWAY_PORT"] = str(parameters.port)
            environment["PYSPARK_GATEWAY_SECRET"] = parameters.auth_token
        flags = ["--own-jvm"] if own_jvm else []
        done = subprocess.run(
            [sys.executable, str(WORKER), *flags, str(folder), release_id, where, *more],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        ledger.verify()
        return SimpleNamespace(
            id=release_id,
            held=ledger.find(release_id),
            charged=ledger.balance("flights").spent - spent,
            shown=shown(folder, release_id),
            output=done.stdout,
        )

    return run


def shown(folder, release_id):
    """What is published of a release, of all places."""
    places = [*(folder / "out").glob(f"{release_id}*"), *(folder / "vault").glob(f"{release_id}*")]
    return {place.name for place in places if ".staging-" not in place.name}


def contents(folder, release_id):
    """Every file of a release, staged or published, by the name it has or will have."""
    return {
        str(path.relative_to(folder)).replace(f".staging-{release_id}", ""): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and release_id in str(path.relative_to(folder))
    }


def ask_again(spark, folder, ledger, release_id, *, overwrite=False):
    """Ask for a release with records that cannot be read any more."""
    source = confidential_records(spark)

    def touched(batches):
        raise AssertionError("the data was read")
        yield from batches

    records = source.mapInArrow(touched, source.schema)
    request = crash_request(spark, folder, release_id, records, overwrite=overwrite)
    return run_release(spark, request, ledger=ledger)


def assert_charged_and_hidden(crashed, folder, ledger):
    """It is charged, reported as half done, invisible, and refused until somebody ends it."""
    assert crashed.held.state is State.RESERVED
    assert crashed.charged == crashed.held.rho > Rho(0)
    assert crashed.shown == set()
    (state,) = commands.show(f"sqlite:///{folder}/ledger.db")
    assert crashed.id in state["half_done"]
    assert crashed.id in [release.release_id for release in ledger.half_done("flights")]


def test_before_the_reservation_nothing_is_charged_and_the_run_is_simply_repeated(
    spark, folder, ledger, crash
):
    crashed = crash("reserving")
    assert crashed.held is None
    assert crashed.charged == Rho(0)
    assert crashed.shown == set()
    assert contents(folder, crashed.id) == {}
    request = crash_request(spark, folder, crashed.id, confidential_records(spark, {("AA", 1): 9}))
    assert run_release(spark, request, ledger=ledger).counts.count() == 12


def test_after_the_reservation_the_charge_stays_and_nothing_is_there(spark, folder, ledger, crash):
    crashed = crash("counting")
    assert_charged_and_hidden(crashed, folder, ledger)
    assert contents(folder, crashed.id) == {}
    with pytest.raises(HalfDoneReleaseError):
        ask_again(spark, folder, ledger, crashed.id)


def test_in_the_job_the_charge_stays_though_spark_goes_on_without_its_driver(
    spark, folder, ledger, crash
):
    crashed = crash("job")
    assert_charged_and_hidden(crashed, folder, ledger)
    # The JVM outlives the process, as on a shared cluster, and finishes the write it was at.
    vault = folder / "vault"
    finished = f"{crashed.id}.staging-*/_SUCCESS"
    assert wait_for(lambda: list(vault.glob(finished)), "the end of the write")
    assert shown(folder, crashed.id) == set()
    with pytest.raises(HalfDoneReleaseError):
        ask_again(spark, folder, ledger, crashed.id)
    ledger.abort(crashed.id, nothing_was_published=True)
    assert shown(folder, crashed.id) == set()


def test_in_the_job_with_a_jvm_of_its_own_the_charge_stays(spark, folder, ledger, crash):
    """Before it, a task's second attempt is seen to keep the same records of each unit."""
    crashed = crash("job", own_jvm=True)
    assert "second attempts keep the same" in crashed.output
    assert_charged_and_hidden(crashed, folder, ledger)
    with pytest.raises(HalfDoneReleaseError):
        ask_again(spark, folder, ledger, crashed.id)


def test_after_staging_the_finished_release_is_not_shown(spark, folder, ledger, crash):
    crashed = crash("committing")
    assert_charged_and_hidden(crashed, folder, ledger)
    assert {name.split("/")[1] for name in contents(folder, crashed.id)} == {
        crashed.id,
        f"{crashed.id}_audit_groups",
        f"{crashed.id}_audit_header",
    }
    with pytest.raises(HalfDoneReleaseError):
        ask_again(spark, folder, ledger, crashed.id)
    assert shown(folder, crashed.id) == set()
    ledger.abort(crashed.id, nothing_was_published=True)
    assert shown(folder, crashed.id) == set()


@pytest.mark.parametrize("where", ["publishing", "target-1", "target-2", "target-3", "end"])
def test_from_the_commit_on_asking_again_publishes_what_is_staged_byte_by_byte(
    spark, folder, ledger, crash, where
):
    crashed = crash(where)
    assert crashed.held.state is State.COMMITTED
    assert crashed.charged == crashed.held.rho > Rho(0)
    names = [f"{crashed.id}{suffix}" for suffix in ("", "_audit_groups", "_audit_header", "")]
    published = {"publishing": 0, "target-1": 1, "target-2": 2, "target-3": 3, "end": 4}[where]
    assert crashed.shown == set(names[:published])
    before = contents(folder, crashed.id)
    release = ask_again(spark, folder, ledger, crashed.id)
    assert shown(folder, crashed.id) == set(names)
    assert contents(folder, crashed.id) == before
    assert not [name for name in entries(folder / "out") if f".staging-{crashed.id}" in name]
    assert release.counts.count() == 12
    assert release.audit.header.release_id == crashed.id
    assert ledger.balance("flights").spent >= crashed.held.rho
    again = ask_again(spark, folder, ledger, crashed.id)
    assert again.counts.collect() == release.counts.collect()


def test_a_replacement_that_dies_between_its_two_moves_is_finished_by_asking_again(
    spark, folder, ledger, crash
):
    first = crash("end", "overwrite")
    second = crash("publishing", "overwrite")
    out = folder / "out"
    # The process dies with the old directory out of the way and the new one not yet in place.
    (out / "shared").rename(out / f"shared.replaced-{second.id}")
    before = contents(out, second.id)
    release = ask_again(spark, folder, ledger, second.id, overwrite=True)
    assert release.audit.header.release_id == second.id
    assert {"shared", "shared_audit_groups", "shared_audit_header"} <= entries(out)
    assert not [name for name in entries(out) if second.id in name]
    assert any(name.startswith("shared/") for name in before)
    with pytest.raises(ReleaseError, match="replaced"):
        ask_again(spark, folder, ledger, first.id, overwrite=True)
