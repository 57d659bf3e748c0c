"""Packs tests of random memory and length onto GPUs, and compares with the best packing.

A real session with workers of pytest-xdist runs tests that hold nothing but time: on a machine
without a GPU the phantom shows the cards. What each test had, and when, it writes down itself; from
that follow the most that was promised of a card at any time, and the time that all took. The best
packing is not known: the table has a bound that no packing can be under, and the best of many that
a search found, with as many workers; and the time of tests that have their GPUs alone, as found by
the same search. Starting an isolated test costs time that no packing can save and that is not taken
off: the longer the tests, the less it matters.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from results_file import parser, publish, table

GIB = 1 << 30
TESTS = 60
SUITE = """
import json, os, time
import pytest

TESTS = json.load(open({tests!r}))

def log(line):
    fd = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps([time.monotonic(), *line]) + chr(10)).encode())
    os.close(fd)

@pytest.mark.parametrize("name", [
    pytest.param(name, id=name, marks=pytest.mark.gpus(n, **kind)) for name, n, kind, _, _ in TESTS
])
def test_holds(name):
    (one,) = [one for one in TESTS if one[0] == name]
    gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    log(["in", name, gpus])
    time.sleep(one[4])
    log(["out", name, gpus])
"""


class Test(NamedTuple):
    """One test: its name, GPUs, bytes on each, and seconds."""

    name: str
    gpus: int
    memory: int
    seconds: float


def random_tests(seed: int, gpus: int, capacity: int, longest: float) -> list[Test]:
    """Return tests of random memory and length; with two GPUs one in eight needs both."""
    chance = random.Random(seed)
    return [
        Test(
            f"t{number}",
            2 if gpus > 1 and chance.random() < 0.125 else 1,
            int(chance.uniform(0.01, 0.95) * capacity),
            round(chance.uniform(0.1, 1.0) * longest, 3),
        )
        for number in range(TESTS)
    ]


def bound(tests: list[Test], gpus: int, capacity: int, workers: int) -> float:
    """Return a time that no packing can be under, in seconds."""
    area = sum(one.memory * one.seconds * one.gpus for one in tests) / (gpus * capacity)
    big = sum(one.seconds * one.gpus for one in tests if one.memory > capacity / 2) / gpus
    return max(area, big, sum(one.seconds for one in tests) / workers)


def search(tests: list[Test], gpus: int, capacity: int, workers: int, tries: int) -> float:
    """Return the shortest time of many packings: each takes what fits first, in another order."""
    chance = random.Random(0)
    best = float("inf")
    for _ in range(tries):
        weight, spread = chance.random(), chance.uniform(0.0, 0.5)
        key = {
            one.name: -(one.seconds**weight)
            * ((one.memory * one.gpus / capacity) ** (1 - weight))
            * chance.uniform(1 - spread, 1 + spread)
            for one in tests
        }
        best = min(
            best, _play(sorted(tests, key=lambda one: key[one.name]), gpus, capacity, workers)
        )
    return best


def _play(order: list[Test], gpus: int, capacity: int, workers: int) -> float:
    free, now = [capacity] * gpus, 0.0
    running: list[tuple[float, Test, list[int]]] = []
    waiting = list(order)
    while waiting or running:
        for one in list(waiting):
            fitting = sorted((f, card) for card, f in enumerate(free) if f >= one.memory)
            if len(running) < workers and len(fitting) >= one.gpus:
                cards = [card for _, card in fitting[: one.gpus]]
                for card in cards:
                    free[card] -= one.memory
                running.append((now + one.seconds, one, cards))
                waiting.remove(one)
        running.sort(key=lambda entry: entry[0])
        now, one, cards = running.pop(0)
        for card in cards:
            free[card] += one.memory
    return now


class Outcome(NamedTuple):
    """What a session showed: seconds from the first test to the last, and the fullest card."""

    seconds: float
    fullest: float
    """The most that tests had of a card at any time, as part of its memory."""
    passed: int


def run(tests: list[Test], face: str, capacity: int, workers: int) -> Outcome:
    """Run the tests in a session, packed by a profile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, data = folder / "log", folder / "tests.json"
        kind: dict[str, object] = {}
        told = [(one.name, one.gpus, kind, one.memory, one.seconds) for one in tests]
        data.write_text(json.dumps(told))
        (folder / "test_holds.py").write_text(SUITE.format(tests=str(data), log=str(log)))
        options = [f"--cuda-fork-device=phantom:{face}", "--cuda-fork-check", "-q"]
        (folder / "profile.json").write_text(json.dumps(_profile(tests, face)))
        options.append(f"--cuda-fork-pack={folder / 'profile.json'}")
        command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider"]
        command += ["-n", str(workers), "--maxschedchunk=1", str(folder)]
        environment = {**os.environ, "TMPDIR": name}
        done = subprocess.run(
            command, cwd=name, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        if done.returncode != 0:
            raise SystemExit(done.stdout)
    needs = {one.name: one.memory for one in tests}
    held: dict[str, int] = {}
    fullest = 0
    for _, what, test, gpus in sorted(lines):
        for gpu in gpus:
            held[gpu] = held.get(gpu, 0) + (needs[test] if what == "in" else -needs[test])
            fullest = max(fullest, held[gpu])
    times = [line[0] for line in lines]
    passed = sum(line[1] == "out" for line in lines)
    return Outcome(max(times) - min(times), fullest / capacity, passed)


def _profile(tests: list[Test], face: str) -> dict[str, object]:
    from pytest_cudafork.gpus.inventory import phantom_machine

    costs = {
        f"test_holds.py::test_holds[{one.name}]": {
            "seconds": one.seconds,
            "gpus": one.gpus,
            # the plugin adds to what was seen; here the need is known
            "vram": max(1, int((one.memory - (256 << 20)) / 1.1)),
            "ram": 1,
        }
        for one in tests
    }
    models = {gpu.name: gpu.memory for gpu in phantom_machine(face).gpus}
    return {"pytest_cudafork_profile": 1, "gpus": models, "tests": costs}


def main() -> None:
    """Run the sessions, print, and keep the results if that is asked for."""
    from pytest_cudafork.gpus.inventory import phantom_machine

    made = parser("Time of packed tests against the best packing.", rounds=1)
    made.add_argument("--workers", type=int, default=6, help="default 6")
    made.add_argument("--longest", type=float, default=3.0, help="seconds of a test; default 3")
    options = made.parse_args()
    rows, data = [], dict[str, object]()
    for gpus in (1, 2):
        face = f"sm_90x{gpus}"
        capacity = phantom_machine(face).gpus[0].memory
        ratios, figures = [], []
        for seed in range(options.rounds):
            tests = random_tests(seed, gpus, capacity, options.longest)
            start = time.monotonic()
            packed = run(tests, face, capacity, options.workers)
            whole = [one._replace(memory=capacity) for one in tests]
            alone = search(whole, gpus, capacity, options.workers, 50)
            found = search(tests, gpus, capacity, options.workers, 400)
            least = bound(tests, gpus, capacity, options.workers)
            ratios.append(packed.seconds / found)
            figures.append(
                {
                    "packed_s": round(packed.seconds, 2),
                    "alone_s": round(alone, 2),
                    "best_found_s": round(found, 2),
                    "bound_s": round(least, 2),
                    "fullest": round(packed.fullest, 4),
                    "passed": packed.passed,
                    "whole_s": round(time.monotonic() - start, 1),
                }
            )
        last = figures[-1]
        rows.append(
            [
                f"{gpus}",
                *(str(last[key]) for key in ("packed_s", "best_found_s", "bound_s", "alone_s")),
                f"{statistics.median(ratios):.3f}",
                f"{100 * max(float(one['fullest']) for one in figures):.1f} %",
            ]
        )
        data[f"{gpus}_gpus"] = {
            "ratio_to_best_found": round(statistics.median(ratios), 3),
            "runs": figures,
        }
    header = ["GPUs", "packed s", "best found s", "bound s", "alone s", "to best", "fullest card"]
    title = "Tests packed by memory"
    data |= {"tests": TESTS, "workers": options.workers, "longest_s": options.longest}
    publish("packing", title, table(header, rows), data, save=options.save)


if __name__ == "__main__":
    main()
