"""Many processes at once, and processes that die: no charge is lost, none is made twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_for

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.ledger import Caps, Ledger, State

WORKER = Path(__file__).with_name("ledger_worker.py")
ROOT = Path(__file__).parents[2]
ONE = PolicyCost(Rho.upper("1"), "linear_log", {"sigma": 0.1})


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def answers_at_once(processes: list[subprocess.Popen[str]]) -> list[str]:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sorted(process.communicate(timeout=120)[0].strip() for process in processes)


def lines(path: Path) -> set[str]:
    return set(path.read_text().split()) if path.exists() else set()


def test_of_eight_processes_asking_for_the_last_three_units_exactly_three_get_one(url):
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=10))
        for number in range(7):
            ledger.reserve("taxi", f"earlier-{number}", ONE, {})
        assert ledger.balance("taxi").left == Rho.upper("3")
        answers = answers_at_once([start("race", url, f"late-{i}") for i in range(8)])
        assert answers == ["BudgetExceededError"] * 5 + ["reserved"] * 3
        assert ledger.balance("taxi").left == Rho(0)
        assert len(ledger.half_done("taxi")) == 10
        ledger.verify()


def test_of_four_processes_asking_for_the_same_release_exactly_one_gets_it(url):
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=10))
        answers = answers_at_once([start("race", url, "same") for _ in range(4)])
        assert answers == ["HalfDoneReleaseError"] * 3 + ["reserved"]
        assert ledger.balance("taxi").spent == Rho.upper("1")


def test_a_process_killed_at_any_step_loses_no_charge_and_publishes_nothing_uncharged(
    url, tmp_path
):
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=1000, at_least={1: 1000}))
        process = start("crash", url, str(tmp_path))
        output, _ = process.communicate(timeout=300)
        report = json.loads(output)
        ran, published = lines(tmp_path / "ran"), lines(tmp_path / "published")

        assert report["status"] == 0
        assert report["survivor"] in published
        assert {step["signal"] for step in report["steps"]} == {signal.SIGKILL}
        labels = [step["step"] for step in report["steps"]]
        assert sum(label == "before COMMIT" for label in labels) == 2
        assert sum(label == "after COMMIT" for label in labels) == 2
        assert any("INSERT INTO ledger_release" in label for label in labels)

        held = {release.release_id: release for release in ledger.releases()}
        assert ran <= set(held)
        assert published == {report["survivor"]}
        commits = 0
        for step in report["steps"]:
            state = held[step["id"]].state if step["id"] in held else None
            # The charge is there from the first COMMIT on, the end from the second on.
            commits += step["step"] == "after COMMIT"
            assert state == [None, State.RESERVED, State.COMMITTED][commits], step
        assert ledger.balance("taxi").spent == Rho.upper(len(held))
        assert len(ledger.half_done()) == sum(r.state is State.RESERVED for r in held.values())
        ledger.verify()

        half_done = ledger.half_done()[0]
        ledger.abort(half_done.release_id, nothing_was_published=True)
        assert ledger.balance("taxi").spent == Rho.upper(len(held) - 1)
        ledger.verify()


def test_processes_killed_at_random_moments_leave_every_run_charged(url, tmp_path):
    moments = random.Random(4)  # noqa: S311 - when to kill, not what to draw
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=10**6))
        for killing in range(1, 9):
            processes = [start("storm", url, str(tmp_path)) for _ in range(2)]
            for process in processes:
                assert process.stdout.readline() == "ready\n"
            # However slow the disk is: the first were published before any process is killed.
            wait_for(
                lambda least=2 * killing: len(lines(tmp_path / "published")) >= least,
                "the first publications",
            )
            time.sleep(moments.uniform(0.05, 0.3))
            for process in processes:
                process.kill()
            for process in processes:
                assert process.wait(timeout=60) == -signal.SIGKILL
                process.communicate()
        # A server may still be at a dead client's last commit; a change waits for it.
        ledger.set_caps("taxi", Caps.of(rho=10**6))
        held = {release.release_id: release.state for release in ledger.releases()}
        ran, published = lines(tmp_path / "ran"), lines(tmp_path / "published")
        assert len(published) > 8
        assert ran <= set(held)
        assert {held[release_id] for release_id in published} == {State.COMMITTED}
        assert ledger.balance("taxi").spent == Rho.upper(len(held))
        ledger.verify()
