"""Processes that use a ledger at once, die in the middle of it, or lack a right. Run by the tests.

``python ledger_worker.py race URL RELEASE_ID`` waits for a line, then asks for one rho.
``python ledger_worker.py crash URL FOLDER`` dies at every step of a release's life in turn.
``python ledger_worker.py storm URL FOLDER`` makes releases until it is killed.
``python ledger_worker.py write URL`` opens the ledger, gives up root's rights, asks for one rho
and prints the error's class and text.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from sqlalchemy import event

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.ledger import Ledger
from spark_dphist.errors import SparkDphistError

ONE = PolicyCost(Rho.upper("1"), "linear_log", {"sigma": 0.1})


def race(url: str, release_id: str) -> None:
    with Ledger(url) as ledger:
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            ledger.reserve("taxi", release_id, ONE, {})
            print("reserved")
        except SparkDphistError as error:
            print(type(error).__name__)


def mark(folder: str, what: str, release_id: str) -> None:
    with (Path(folder) / what).open("a") as file:
        file.write(release_id + "\n")
        file.flush()
        os.fsync(file.fileno())


def live(ledger: Ledger, folder: str, release_id: str) -> None:
    """Do what a run does: charge, run, commit, publish."""
    ledger.reserve("taxi", release_id, ONE, {"r": 0.1})
    mark(folder, "ran", release_id)
    ledger.commit(release_id, {"path": release_id})
    mark(folder, "published", release_id)


class DieAt:
    """Kill this process with SIGKILL when a ledger comes to its n-th step."""

    def __init__(self, ledger: Ledger, step: int, report: int) -> None:
        self.left, self.report = step, report
        engine = ledger._database._engine
        event.listen(engine, "before_cursor_execute", self.before_statement)
        commit = engine.dialect.do_commit

        def do_commit(connection: object) -> None:
            self.count("before COMMIT")
            commit(connection)
            self.count("after COMMIT")

        engine.dialect.do_commit = do_commit

    def before_statement(self, _connection, _cursor, statement, *_) -> None:
        self.count("before " + " ".join(statement.split()[:4]))

    def count(self, label: str) -> None:
        if self.left == 0:
            os.write(self.report, label.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def crash(url: str, folder: str) -> None:
    steps: list[dict[str, str]] = []
    while True:
        release_id = f"step-{len(steps)}"
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            ledger = Ledger(url)
            DieAt(ledger, len(steps), write)
            live(ledger, folder, release_id)
            os._exit(0)
        os.close(write)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read) as pipe:
            label = pipe.read()
        if os.WIFEXITED(status):
            break
        steps.append({"id": release_id, "step": label, "signal": os.WTERMSIG(status)})
    print(json.dumps({"steps": steps, "survivor": release_id, "status": status}))


def storm(url: str, folder: str) -> None:
    ledger = Ledger(url)
    print("ready", flush=True)
    number = 0
    while True:
        live(ledger, folder, f"{os.getpid()}-{number}")
        number += 1


def write(url: str) -> None:
    ledger = Ledger(url)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        ledger.reserve("taxi", "new", ONE, {})
        print("reserved")
    except SparkDphistError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    {"race": race, "crash": crash, "storm": storm, "write": write}[sys.argv[1]](*sys.argv[2:])
