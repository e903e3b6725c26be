"""A release is charged before it reads, answered once, and shown only when the ledger has it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F
from releases import KEYS, confidential_records, entries, request_for, with_confidential_audit

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.ledger import (
    BudgetExceededError,
    Caps,
    HalfDoneReleaseError,
    Ledger,
    LedgerError,
    ReleaseConflictError,
    State,
)
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.cli import main
from spark_dphist.errors import BudgetError, ConfigurationError, ReleaseError
from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.release import run_release
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget, TableTarget

PUBLISHED = {"counts", "counts_audit_groups", "counts_audit_header"}


@pytest.fixture
def ledger(tmp_path):
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db", by="keeper") as opened:
        opened.add_dataset("flights", Caps.of(rho=1))
        yield opened


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def watched(spark, tmp_path):
    """Records that note every evaluation, and raise where there is a file named ``fail``."""
    folder = tmp_path / "evaluations"
    folder.mkdir()

    def note(batches):
        import uuid
        from pathlib import Path

        Path(str(folder), uuid.uuid4().hex).touch()
        if Path(str(folder), "fail").exists():
            raise ValueError("passenger 4711 of AA")
        yield from batches

    source = confidential_records(spark, {("AA", 1): 300, (None, 2): 40, ("", 1): 7})
    records = source.coalesce(1).mapInArrow(note, source.schema)
    return SimpleNamespace(
        records=records,
        evaluations=lambda: sorted(set(entries(folder)) - {"fail"}),
        fail=(folder / "fail").touch,
    )


@pytest.fixture
def ask(spark, out, watched):
    """Build a request for the watched records on the data set of the ledger."""

    def build(release_id="r1", **changes):
        settings = {"dataset": "flights", "records": watched.records, **changes}
        return request_for(spark, out, release_id=release_id, **settings)

    return build


def contents(folder):
    """Every file below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def staged(folder):
    return {name.split(".staging-")[0] for name in entries(folder) if ".staging-" in name}


def kinds(ledger):
    return [event.kind for event in ledger.history("flights") if event.kind != "dataset_added"]


def command_in(error):
    """Arguments of the command that a message tells one to run."""
    found = re.search(r"spark-dphist (ledger abort \S+ \S+ --nothing-was-published)", str(error))
    return shlex.split(found.group(1))


def test_a_release_is_charged_before_it_reads_and_committed_before_it_is_shown(
    spark, ask, out, ledger, watched
):
    seen = []

    def look(step):
        held = ledger.find("r1")
        seen.append(
            (
                step.split()[0],
                held.state.value if held else None,
                bool(watched.evaluations()),
                bool(entries(out) & PUBLISHED),
            )
        )

    release = run_release(spark, ask(), ledger=ledger, on_step=look)
    assert seen == [
        ("checking", None, False, False),
        ("reserving", None, False, False),
        ("counting", "reserved", False, False),
        ("reading", "reserved", True, False),
        ("committing", "reserved", True, False),
        ("publishing", "committed", True, False),
    ]
    assert entries(out) == PUBLISHED
    assert kinds(ledger) == ["reserved", "committed"]
    held = ledger.release("r1")
    assert held.rho >= Rho.upper(release.audit.header.worst_case_rho)
    assert ledger.balance("flights").spent == held.rho
    assert held.output == {
        "counts": str(out / "counts"),
        "audit_groups": str(out / "counts_audit_groups"),
        "audit_header": str(out / "counts_audit_header"),
        "key_set_size": 12,
        "key_set_digest": release.audit.header.key_set_digest,
        "counts_digest": release.audit.header.counts_digest,
    }
    assert held.policy["privacy_unit"] == "record"
    assert release.audit.header.dataset == "flights"
    ledger.verify()


def test_a_refused_budget_reads_and_writes_nothing(spark, ask, out, ledger, watched):
    ledger.set_caps("flights", Caps.of(rho="0.05"))
    run_release(spark, ask("r1"), ledger=ledger)
    before, evaluations = contents(out), watched.evaluations()
    watched.fail()
    other = PathTarget(str(out / "second"), "r2")
    request = ask("r2", output=other)
    with pytest.raises(BudgetExceededError, match=r"cap 0\.05, spent 0\.033.*, asked 0\.033"):
        run_release(spark, request, ledger=ledger)
    assert contents(out) == before
    assert watched.evaluations() == evaluations
    assert ledger.find("r2") is None
    assert kinds(ledger) == ["caps_set", "reserved", "committed"]


def test_a_job_that_fails_stays_charged_and_names_the_command_that_frees_it(
    spark, ask, out, ledger, watched
):
    watched.fail()
    with pytest.raises(ReleaseError) as failed:
        run_release(spark, ask(), ledger=ledger)
    assert "Nothing was published" in str(failed.value)
    assert "4711" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert entries(out) == set()
    assert ledger.find("r1").state is State.RESERVED
    assert ledger.balance("flights").spent > Rho(0)
    with pytest.raises(HalfDoneReleaseError):
        run_release(spark, ask(), ledger=ledger)
    with pytest.raises(SystemExit) as leaving:
        main(command_in(failed.value))
    assert not leaving.value.code
    assert ledger.find("r1").state is State.ABORTED
    assert ledger.balance("flights").spent == Rho(0)
    with pytest.raises(ReleaseConflictError, match=r"was aborted .* Choose a new id"):
        run_release(spark, ask(), ledger=ledger)


def test_an_interrupt_in_the_job_leaves_the_charge_and_nothing_staged(
    spark, ask, out, ledger, tmp_path
):
    def interrupt(step):
        if step.startswith("reading"):
            raise KeyboardInterrupt

    request = with_confidential_audit(ask(), tmp_path / "vault" / "audit")
    with pytest.raises(KeyboardInterrupt):
        run_release(spark, request, ledger=ledger, on_step=interrupt)
    assert entries(out) == entries(tmp_path / "vault") == set()
    assert ledger.find("r1").state is State.RESERVED


def test_asking_again_returns_what_is_stored_and_reads_no_data(spark, ask, out, ledger, watched):
    first = run_release(spark, ask(), ledger=ledger)
    before, rows, spent = contents(out), first.counts.collect(), ledger.balance("flights").spent
    evaluations = watched.evaluations()
    watched.fail()
    again = run_release(spark, ask(), ledger=ledger)
    assert again.counts.collect() == rows
    assert again.audit.header == first.audit.header
    assert again.audit.groups.to_pylist() == first.audit.groups.to_pylist()
    assert contents(out) == before
    assert watched.evaluations() == evaluations
    assert ledger.balance("flights").spent == spent
    assert kinds(ledger) == ["reserved", "committed"]


def test_asking_again_after_the_data_has_changed_returns_the_old_release(
    spark, ask, ledger, tmp_path
):
    path = str(tmp_path / "records")
    confidential_records(spark, {("AA", 1): 300}).write.parquet(path)
    first = run_release(spark, ask(records=spark.read.parquet(path)), ledger=ledger)
    rows = first.counts.collect()
    confidential_records(spark, {("AA", 1): 90000}).write.mode("overwrite").parquet(path)
    again = run_release(spark, ask(records=spark.read.parquet(path)), ledger=ledger)
    assert again.counts.collect() == rows


def test_a_release_of_tables_is_handed_out_again(spark, ask, ledger, watched):
    spark.sql("CREATE DATABASE IF NOT EXISTS charged")
    first = run_release(spark, ask(output=TableTarget("charged.counts", "r1")), ledger=ledger)
    watched.fail()
    again = run_release(spark, ask(output=TableTarget("charged.counts", "r1")), ledger=ledger)
    assert sorted(again.counts.collect(), key=str) == sorted(first.counts.collect(), key=str)
    assert again.audit.header == first.audit.header
    spark.sql("DROP DATABASE charged CASCADE")


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"mechanism": ShiftedLog.calibrate(relative_error=0.3, floor=21)}, "parameters"),
        ({"relative_error": 0.4}, "parameters"),
        ({"confidence": 0.9}, "policy"),
        ({"rounding": "none"}, "policy"),
        ({"delta": 1e-9}, "policy"),
        ({"columns": ["month"], "key_set": KeySet.product({"month": [1, 2, None]})}, "policy"),
        ({"output": PathTarget("elsewhere", "r1")}, "policy"),
        ({"input": "other records"}, "policy"),
    ],
)
def test_the_same_id_for_another_policy_is_refused(spark, ask, ledger, watched, changes, differing):
    ledger.reserve("flights", "r1", ask().cost(), ask().policy())
    ledger.commit("r1", {})
    watched.fail()
    with pytest.raises(ReleaseConflictError, match=f"another policy; it differs in {differing}"):
        run_release(spark, ask(**changes), ledger=ledger)
    assert watched.evaluations() == []


def test_the_same_id_for_another_key_set_is_refused(spark, ask, ledger, watched):
    run_release(spark, ask(), ledger=ledger)
    evaluations = watched.evaluations()
    for months in ([1, 2], [1, 3, None]):
        keys = KeySet.product({"carrier": ["AA", "BB", "", None], "month": months})
        with pytest.raises(ConfigurationError, match="made for another key set, of 12 groups"):
            run_release(spark, ask(key_set=keys), ledger=ledger)
    assert watched.evaluations() == evaluations


def test_a_half_done_release_is_refused_with_a_command_that_works(spark, ask, out, ledger, watched):
    ledger.reserve("flights", "r1", ask().cost(), ask().policy())
    with pytest.raises(HalfDoneReleaseError, match="never committed") as refused:
        run_release(spark, ask(), ledger=ledger)
    assert watched.evaluations() == []
    assert entries(out) == set()
    with pytest.raises(SystemExit):
        main(command_in(refused.value))
    assert ledger.find("r1").state is State.ABORTED


def test_a_start_reports_the_runs_that_did_not_finish(spark, ask, ledger):
    ledger.reserve("flights", "died", ask().cost(), ask().policy())
    steps = []
    run_release(spark, ask(), ledger=ledger, on_step=steps.append)
    assert [step for step in steps if "half done" in step] == [
        "release 'died' is half done: running, or dead and still charged"
    ]


def test_an_unknown_data_set_another_unit_and_no_data_set_are_refused(
    spark, ask, out, ledger, watched
):
    with pytest.raises(ConfigurationError, match="Did you mean 'flights'"):
        run_release(spark, ask(dataset="flight"), ledger=ledger)
    with pytest.raises(ConfigurationError, match="name it as 'dataset'"):
        run_release(spark, ask(dataset=None), ledger=ledger)
    unit = PrivacyUnit(column="carrier", max_records=2)
    with pytest.raises(
        ConfigurationError, match=r"protect the privacy unit 'record', .* for 'carrier'"
    ):
        run_release(spark, ask(privacy_unit=unit), ledger=ledger)
    assert watched.evaluations() == []
    assert entries(out) == set()
    assert kinds(ledger) == []


def test_what_spark_cannot_plan_is_refused_before_it_is_charged(spark, ask, ledger, monkeypatch):
    def unplannable(records, *_):
        return records.select("no_such_column")

    monkeypatch.setattr("spark_dphist.release.count_groups", unplannable)
    with pytest.raises(ConfigurationError, match="UNRESOLVED_COLUMN"):
        run_release(spark, ask(), ledger=ledger)
    assert kinds(ledger) == []


def test_columns_that_spark_cannot_tell_apart_are_refused_before_they_are_charged(
    spark, ask, ledger, settings
):
    with settings({"spark.sql.caseSensitive": "true"}):
        records = confidential_records(spark).withColumn("CARRIER", F.lit("x"))
        _ = records.schema
    with pytest.raises(ConfigurationError, match="'carrier' and 'CARRIER', which this session"):
        run_release(spark, ask(records=records), ledger=ledger)
    assert kinds(ledger) == []


def test_a_format_that_cannot_hold_the_columns_is_refused_before_it_is_charged(
    spark, ask, out, ledger
):
    target = PathTarget(str(out / "counts"), "r1", "text")
    with pytest.raises(ConfigurationError, match="cannot hold the group columns"):
        run_release(spark, ask(output=target), ledger=ledger)
    assert kinds(ledger) == []


def test_a_taken_place_is_refused_before_it_is_charged(spark, ask, out, ledger, watched):
    (out / "counts").mkdir()
    with pytest.raises(ConfigurationError, match="exists"):
        run_release(spark, ask(), ledger=ledger)
    assert kinds(ledger) == []
    assert watched.evaluations() == []


class AnswerLost(Ledger):
    """A ledger whose commit is recorded, but whose answer never comes."""

    def commit(self, release_id, output):
        super().commit(release_id, output)
        raise LedgerError("The connection was lost.")


def test_a_commit_whose_answer_was_lost_is_published_by_asking_again(
    spark, ask, out, ledger, watched, tmp_path
):
    request = with_confidential_audit(ask(), tmp_path / "vault" / "audit")
    with (
        AnswerLost(f"sqlite:///{tmp_path}/ledger.db") as lost,
        pytest.raises(ReleaseError, match=r"did not confirm it: The connection was lost\..*again"),
    ):
        run_release(spark, request, ledger=lost)
    assert entries(out) & PUBLISHED == set()
    assert staged(out) == PUBLISHED
    before = {name.replace(".staging-r1", ""): data for name, data in contents(out).items()}
    watched.fail()
    evaluations = watched.evaluations()
    again = run_release(spark, request, ledger=ledger)
    assert contents(out) == before
    assert entries(tmp_path / "vault") == {"audit"}
    assert again.counts.count() == 12
    assert watched.evaluations() == evaluations
    assert kinds(ledger) == ["reserved", "committed"]


def test_a_commit_that_was_not_recorded_is_refused_until_somebody_ends_it(
    spark, ask, out, ledger, tmp_path
):
    """The ledger's file is away just when the release asks for its commit."""
    file, away = tmp_path / "ledger.db", tmp_path / "away.db"

    def take_away(step):
        if step.startswith("committing"):
            file.rename(away)

    with pytest.raises(ReleaseError, match="the ledger did not confirm it") as failed:
        run_release(spark, ask(), ledger=ledger, on_step=take_away)
    away.rename(file)
    assert entries(out) & PUBLISHED == set()
    assert staged(out) == PUBLISHED
    with pytest.raises(HalfDoneReleaseError):
        run_release(spark, ask(), ledger=ledger)
    assert entries(out) & PUBLISHED == set()
    with pytest.raises(SystemExit):
        main(command_in(failed.value))
    assert ledger.balance("flights").spent == Rho(0)
    assert run_release(spark, ask("r2"), ledger=ledger).counts.count() == 12


def test_a_run_that_was_aborted_meanwhile_is_not_shown(spark, ask, out, ledger):
    def abort(step):
        if step.startswith("committing"):
            ledger.abort("r1", nothing_was_published=True)

    with pytest.raises(ReleaseError, match=r"may not be shown: .*aborted.*what was staged is remo"):
        run_release(spark, ask(), ledger=ledger, on_step=abort)
    assert entries(out) == set()
    assert ledger.find("r1").state is State.ABORTED


class SeesNothing(Ledger):
    """A ledger that is looked at just before another run commits the same release."""

    def find(self, release_id):
        return None


def test_a_release_that_another_run_commits_meanwhile_is_not_made_twice(
    spark, ask, out, ledger, watched, tmp_path
):
    """Otherwise a second draw of noise under one charge would replace the first."""
    place = PathTarget(str(out / "counts"), "r1", mode="overwrite")
    request = ask(output=place)
    first = run_release(spark, request, ledger=ledger)
    rows, before, evaluations = first.counts.collect(), contents(out), watched.evaluations()
    watched.fail()
    with SeesNothing(f"sqlite:///{tmp_path}/ledger.db") as late:
        again = run_release(spark, request, ledger=late)
    assert again.counts.collect() == rows
    assert contents(out) == before
    assert watched.evaluations() == evaluations


def test_a_second_draw_under_one_id_cannot_be_committed(spark, ask, ledger):
    release = run_release(spark, ask(), ledger=ledger)
    recorded = ledger.release("r1").output
    assert ledger.commit("r1", recorded).state is State.COMMITTED
    other = {**recorded, "counts_digest": "0" * 64}
    assert release.audit.header.counts_digest != "0" * 64
    with pytest.raises(ReleaseConflictError, match="another output"):
        ledger.commit("r1", other)


def test_a_release_that_another_has_replaced_is_not_handed_out_under_its_id(
    spark, ask, out, ledger
):
    def place(release_id):
        return PathTarget(str(out / "counts"), release_id, mode="overwrite")

    run_release(spark, ask("r1", output=place("r1")), ledger=ledger)
    run_release(spark, ask("r2", output=place("r2")), ledger=ledger)
    with pytest.raises(ReleaseError, match=r"'r2'.* replaced"):
        run_release(spark, ask("r1", output=place("r1")), ledger=ledger)


def test_counts_that_were_changed_after_the_release_are_not_handed_out(spark, ask, out, ledger):
    release = run_release(spark, ask(), ledger=ledger)
    changed = release.counts.withColumn("noisy_count", F.col("noisy_count") + F.lit(1))
    changed.write.parquet(str(out / "changed"))
    (out / "counts").rename(out / "original")
    (out / "changed").rename(out / "counts")
    with pytest.raises(ReleaseError, match="not the ones that release 'r1' was audited with"):
        run_release(spark, ask(), ledger=ledger)


@pytest.mark.parametrize("lost", sorted(PUBLISHED))
def test_a_committed_release_whose_files_are_gone_is_not_made_again(
    spark, ask, out, ledger, watched, lost
):
    run_release(spark, ask(), ledger=ledger)
    evaluations = watched.evaluations()
    (out / lost).rename(out / "lost")
    with pytest.raises(ReleaseError, match="Restore it from a backup"):
        run_release(spark, ask(), ledger=ledger)
    assert watched.evaluations() == evaluations
    assert entries(out) == PUBLISHED - {lost} | {"lost"}


def test_a_place_taken_just_before_publishing_is_mended_by_asking_again(spark, ask, out, ledger):
    def take(step):
        if step == "publishing":
            (out / "counts_audit_header").mkdir()

    with pytest.raises(ReleaseError, match="ask for the same release id again"):
        run_release(spark, ask(), ledger=ledger, on_step=take)
    assert entries(out) & PUBLISHED == {"counts_audit_groups", "counts_audit_header"}
    with pytest.raises(ReleaseError, match="could not be moved"):
        run_release(spark, ask(), ledger=ledger)
    (out / "counts_audit_header").rmdir()
    assert run_release(spark, ask(), ledger=ledger).counts.count() == 12
    assert entries(out) == PUBLISHED


def test_units_are_bounded_charged_and_audited_as_configured(spark, ask, ledger, tmp_path):
    ledger.add_dataset("people", Caps.of(rho=10), privacy_unit="passenger")
    unit = PrivacyUnit(column="passenger", max_records=3)
    # Passengers 1 to 50 are in both groups of AA, twice in each.
    source = confidential_records(spark, {("AA", 1): 50, ("AA", 2): 50})
    request = with_confidential_audit(
        ask(records=source.union(source), privacy_unit=unit, dataset="people", key_set=KEYS),
        tmp_path / "vault",
    )
    release = run_release(spark, request, ledger=ledger)
    header = release.audit.header
    assert header.privacy_unit == "all records of one 'passenger', of which at most 3 are counted"
    assert (header.records_per_unit, header.records_per_group) == (3, 3)
    assert header.neighbouring == "add or remove one privacy unit"
    assert header.worst_case_rho == unit.worst_case_rho_upper(request.mechanism)
    assert ledger.release("r1").cost.privacy_unit == "passenger"
    assert ledger.balance("people").spent >= Rho.upper(header.worst_case_rho)
    secret = spark.read.parquet(str(tmp_path / "vault"))
    counted = {(row.carrier, row.month): row.confidential_true_count for row in secret.collect()}
    # "undeclared" has passenger 1 ten times: of its 14 records 3 are kept.
    assert 3 * 49 <= counted["AA", 1] + counted["AA", 2] <= 3 * 50
    rho = {(row.carrier, row.month): row.confidential_rho for row in secret.collect()}
    count = counted["AA", 1]
    assert rho["AA", 1] == float(request.mechanism.budget(count, 3))

    distinct = PrivacyUnit(column="passenger", max_records=2, distinct=True)
    request = with_confidential_audit(
        replace(
            ask("r2", output=PathTarget(str(tmp_path / "units"), "r2")),
            records=source.union(source),
            privacy_unit=distinct,
            dataset="people",
        ),
        tmp_path / "vault2",
    )
    release = run_release(spark, request, ledger=ledger)
    assert release.audit.header.records_per_group == 1
    secret = spark.read.parquet(str(tmp_path / "vault2"))
    counted = [row.confidential_true_count for row in secret.where("carrier = 'AA'").collect()]
    assert sorted(counted)[-2:] in ([49, 50], [50, 50])


# The command line

CONFIGURATION = """
name = "flights"
release_id = "monday"
[input]
path = "{folder}/records"
[groups]
columns = ["carrier", "month"]
[groups.keys.product]
carrier = ["AA", "BB"]
month = [1, 2]
[mechanism]
relative_error = 0.3
floor = 20
[output]
path = "{folder}/out/counts"
[ledger]
url = "sqlite:///{folder}/ledger.db"
dataset = "flights"
"""


@pytest.fixture
def configured(spark, tmp_path):
    confidential_records(spark, {("AA", 1): 300, ("BB", 2): 40}).coalesce(1).write.parquet(
        str(tmp_path / "records")
    )
    file = tmp_path / "release.toml"
    file.write_text(CONFIGURATION.format(folder=tmp_path))
    return file


def make_unreadable(folder):
    """Overwrite the data pages; the footers, and so the schema, stay."""
    for file in folder.glob("part-*"):
        data = bytearray(file.read_bytes())
        footer = int.from_bytes(data[-8:-4], "little")
        data[4 : -8 - footer] = bytes(len(data) - 12 - footer)
        file.write_bytes(data)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def line(capfd, *arguments):
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    printed = capfd.readouterr()
    return SimpleNamespace(code=leaving.value.code or 0, out=printed.out, err=printed.err)


def test_run_shows_the_budget_and_a_retry_spends_nothing(configured, capfd, ledger, tmp_path, out):
    done = line(capfd, "run", str(configured))
    assert done.code == 0
    assert re.search(
        r"limit 1, spent 0, requested 0\.033\d+, left 1: fits", done.err.replace("\n", " ")
    )
    assert "charged to data set 'flights'" in done.out
    spent = ledger.balance("flights").spent
    before = contents(out)
    make_unreadable(tmp_path / "records")
    again = line(capfd, "run", str(configured), "--show", "2")
    assert again.code == 0
    assert again.out.startswith(done.out.rstrip())
    assert "noisy_count" in again.out
    assert contents(out) == before
    assert ledger.balance("flights").spent == spent


def test_run_leaves_with_3_where_the_budget_is_spent(configured, capfd, ledger, tmp_path, out):
    ledger.set_caps("flights", Caps.of(rho="0.01"))
    make_unreadable(tmp_path / "records")
    done = line(capfd, "run", str(configured))
    assert done.code == 3
    assert "DOES NOT FIT" in done.err
    assert "cap 0.01, spent 0, asked 0.033" in done.err
    assert "Traceback" not in done.err
    assert entries(out) == set()
    assert kinds(ledger) == ["caps_set"]
    assert issubclass(BudgetExceededError, BudgetError)


def test_run_leaves_with_1_and_the_mend_where_the_data_cannot_be_read(
    configured, capfd, ledger, tmp_path, out
):
    make_unreadable(tmp_path / "records")
    done = line(capfd, "run", str(configured))
    assert done.code == 1
    assert "Nothing was published" in done.err
    assert entries(out) == set()
    assert line(capfd, *command_in(done.err)).code == 0
    assert ledger.balance("flights").spent == Rho(0)


def test_a_dry_run_shows_the_budget_and_charges_nothing(configured, capfd, ledger, out):
    done = line(capfd, "run", str(configured), "--dry-run")
    assert done.code == 0
    assert "left 1: fits" in done.err
    assert kinds(ledger) == []
    assert entries(out) == set()


def test_a_retry_never_publishes_or_replaces_with_what_is_not_the_committed_release(
    spark, ask, out, ledger
):
    run_release(spark, ask("r1"), ledger=ledger)
    published = contents(out)
    # What stands beside the places is another run's, under a name that is taken for this one's.
    elsewhere = out.parent / "elsewhere"
    run_release(spark, ask("r2", output=PathTarget(str(elsewhere / "counts"), "r2")))
    for name in PUBLISHED:
        (elsewhere / name).rename(out / f"{name}.staging-r1")

    again = replace(ask("r1"), output=PathTarget(str(out / "counts"), "r1", mode="overwrite"))
    with pytest.raises(ReleaseError, match="is not it"):
        run_release(spark, again, ledger=ledger)

    assert {
        name: data for name, data in contents(out).items() if "staging" not in name
    } == published


@pytest.mark.usefixtures("ledger")
def test_rows_are_shown_though_the_audit_was_not_collected(configured, capfd, out):
    text = configured.read_text().replace("[ledger]", "[audit]\nmax_collected_groups = 3\n[ledger]")
    configured.write_text(text)
    done = line(capfd, "run", str(configured), "--show", "2")
    assert done.code == 0
    shown = done.out.split("\n\n")[1].splitlines()
    assert shown[0].split() == ["carrier", "month", "noisy_count", "lower", "upper"]
    assert len(shown) == 3
    assert entries(out) == PUBLISHED
