"""How many releases a minute a ledger reserves and commits.

``python benchmarks/ledger_rate.py [URL] [--processes N] [--releases M]``

URL must name a place where there is no ledger yet; by default it is a SQLite file in a new folder
under the current one (put it on the disk you mean to use: each step waits for that disk). Exits
with 1 below the 1,000 reservations a minute the project promises.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier

from spark_dphist.accounting.composition import PolicyCost
from spark_dphist.accounting.ledger import Caps, Ledger

PROMISED = 1000


def work(url: str, releases: int, barrier: Barrier, results: multiprocessing.Queue) -> None:
    cost = PolicyCost.from_function(lambda n: 1e-6 / n**2, "linear_log", {"sigma": 0.125})
    with Ledger(url) as ledger:
        names = [f"{os.getpid()}-{number}" for number in range(releases)]
        barrier.wait()
        start = time.perf_counter()
        for name in names:
            ledger.reserve("benchmark", name, cost, {"relative_error": 0.1, "floor": 100})
        reserved = time.perf_counter()
        barrier.wait()
        again = time.perf_counter()
        for name in names:
            ledger.commit(name, {"path": name})
        results.put((reserved - start, time.perf_counter() - again))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--releases", type=int, default=500, help="per process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        url = options.url or f"sqlite:///{folder}/ledger.db"
        with Ledger.initialise(url) as ledger:
            ledger.add_dataset("benchmark", Caps.of(rho=10**6, at_least={100: 10, 10**4: 1}))
            spawn = multiprocessing.get_context("spawn")
            barrier, results = spawn.Barrier(options.processes), spawn.Queue()
            workers = [
                spawn.Process(target=work, args=(url, options.releases, barrier, results))
                for _ in range(options.processes)
            ]
            for worker in workers:
                worker.start()
            times = [results.get(timeout=600) for _ in workers]
            for worker in workers:
                worker.join()
            ledger.verify()
            assert len(ledger.releases()) == options.processes * options.releases
    done = options.processes * options.releases
    rates = [60 * done / max(step) for step in zip(*times, strict=True)]
    print(
        f"{url.split(':')[0]}, {options.processes} process(es), {done} releases, "
        f"{platform.machine()} {os.cpu_count()} cores: "
        f"{rates[0]:,.0f} reservations a minute, {rates[1]:,.0f} commits a minute"
    )
    return 0 if rates[0] >= PROMISED else 1


if __name__ == "__main__":
    sys.exit(main())
