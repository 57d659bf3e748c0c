"""Packs tests of random memory and length onto GPUs, and compares with the best packing.

A real session with workers of pytest-xdist runs tests that hold nothing but time: on a machine
without a GPU the phantom shows the cards. With ``--real`` they hold their memory, too, and fail
where there is no room. What each test had, and when, it writes down itself; from that follow the
most that was promised of a card at any time, and the time that all took. The best packing is not
known: the table has a bound that no packing can be under, and the best of many that a search found,
with as many workers; and the time of tests that have their GPUs alone, as found by the same search.

Starting the process of a test, and CUDA in it, takes time that no packing can save. So there are
two comparisons: of the tests' bodies alone ("bodies to best": the longer the tests, the less their
start matters), and of whole tests, from the moment at which one has its GPUs to that at which it
gives them back, against the best packing of these ("packed to best"). What the plugin's decisions
alone lead to, if nothing else took time, is worked out beside it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from arguments import above_zero, at_least
from results_file import parser, publish, table

if TYPE_CHECKING:
    import argparse

    from pytest_cudafork.gpus.inventory import Gpu

TESTS = 60
TRIES = 400
"""How many packings the search tries."""
CONFTEST = """
import json, os, time
import pytest

PID = os.getpid()

def log(what, nodeid):
    if os.getpid() == PID and "PYTEST_XDIST_WORKER" in os.environ:
        fd = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        test = nodeid.rpartition("[")[2][:-1]
        os.write(fd, (json.dumps([time.monotonic(), what, test, []]) + chr(10)).encode())
        os.close(fd)

@pytest.hookimpl(trylast=True)
def pytest_runtest_logstart(nodeid):
    log("has", nodeid)  # its GPUs

@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    log("gives", nodeid)
"""
SUITE = """
import ctypes, json, os, time
import pytest

TESTS = json.load(open({tests!r}))

def hold(size, gpus):
    cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    memory = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    for number in range(gpus):
        assert cuda.cuDeviceGet(ctypes.byref(device), number) == 0
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0

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
    if {real}:
        # The context takes some of it, and of the smallest tests half a GiB.
        hold(max(1 << 20, one[3] - (1 << 30)), len(gpus))
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


def decide(tests: list[Test], gpus: int, capacity: int, workers: int) -> float:
    """Return the time that the plugin's decisions lead to, if nothing else took any."""
    from pytest_cudafork.gpus.order import Planned, best_order, seconds_of
    from pytest_cudafork.gpus.packing import Card, Request

    cards = [Card(str(number), capacity) for number in range(gpus)]
    names = tuple(card.name for card in cards)
    planned = [Planned(Request(one.gpus, names, memory=one.memory), one.seconds) for one in tests]
    order = best_order(planned, cards, workers)
    return seconds_of([planned[one] for one in order], cards, workers)


class Outcome(NamedTuple):
    """What a session showed: seconds from the first test to the last, and the fullest card."""

    seconds: float
    whole: float
    """From the first lease to the end of the last."""
    spans: dict[str, float]
    """Seconds from lease to lease's end of each test."""
    fullest: float
    """The most that tests had of a card at any time, as part of its memory."""
    measured: float
    """The most that NVML said was in use of a card; 0 with a phantom."""
    passed: int


def machine_of(gpus: int, *, real: bool) -> tuple[Gpu, ...]:
    """Return the GPUs that a session packs onto: a phantom's, or the first of this machine."""
    from pytest_cudafork.gpus.inventory import phantom_machine, real_machine

    found = (real_machine() if real else phantom_machine(f"sm_90x{gpus}")).gpus[:gpus]
    if len(found) < gpus:
        raise SystemExit(f"this machine has {len(found)} GPUs, not {gpus}")
    return found


@contextmanager
def watched(cards: tuple[Gpu, ...], *, real: bool) -> Iterator[list[float]]:
    """Measure the cards for the length of the block; gives a list with the fullest of all times."""
    from pytest_cudafork.gpus.memory import measure

    fullest, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found = measure(cards) or {}
            fullest[0] = max(fullest[0], *(found[one.uuid].used / one.memory for one in cards))

    thread = threading.Thread(target=look)
    if real:
        thread.start()
    try:
        yield fullest
    finally:
        over.set()
        if real:
            thread.join()


def run(tests: list[Test], cards: tuple[Gpu, ...], workers: int, *, real: bool) -> Outcome:
    """Run the tests in a session, packed by a profile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, data = folder / "log", folder / "tests.json"
        kind: dict[str, object] = {}
        told = [(one.name, one.gpus, kind, one.memory, one.seconds) for one in tests]
        data.write_text(json.dumps(told))
        suite = SUITE.format(tests=str(data), log=str(log), real=real)
        (folder / "test_holds.py").write_text(suite)
        (folder / "conftest.py").write_text(CONFTEST.format(log=str(log)))
        device = "real" if real else f"phantom:sm_90x{len(cards)}"
        options = [f"--cuda-fork-device={device}", f"--cuda-fork-gpus={len(cards)}", "-q"]
        (folder / "profile.json").write_text(json.dumps(_profile(tests, cards)))
        options += ["--cuda-fork-check", f"--cuda-fork-pack={folder / 'profile.json'}"]
        command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider"]
        command += ["-n", str(workers), "--maxschedchunk=1", str(folder)]
        environment = {**os.environ, "TMPDIR": name}
        with watched(cards, real=real) as measured:
            done = subprocess.run(
                command, cwd=name, env=environment, stdout=subprocess.PIPE, text=True, check=False
            )
        if done.returncode != 0:
            raise SystemExit(done.stdout)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return _outcome(sorted(lines), tests, cards[0].memory, measured[0])


def _outcome(
    lines: list[tuple[float, str, str, list[str]]], tests: list[Test], size: int, measured: float
) -> Outcome:
    needs = {one.name: one.memory for one in tests}
    held: dict[str, int] = {}
    fullest = 0
    moments: dict[str, dict[str, float]] = {}
    for moment, what, test, gpus in lines:
        moments.setdefault(what, {})[test] = moment
        for gpu in gpus:
            held[gpu] = held.get(gpu, 0) + (needs[test] if what == "in" else -needs[test])
            fullest = max(fullest, held[gpu])
    has, gives = moments["has"], moments["gives"]
    return Outcome(
        seconds=max(moments["out"].values()) - min(moments["in"].values()),
        whole=max(gives.values()) - min(has.values()),
        spans={test: gives[test] - has[test] for test in has},
        fullest=fullest / size,
        measured=measured,
        passed=len(moments["out"]),
    )


def _profile(tests: list[Test], cards: tuple[Gpu, ...]) -> dict[str, object]:
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
    models = {gpu.name: gpu.memory for gpu in cards}
    return {"pytest_cudafork_profile": 1, "gpus": models, "tests": costs}


def compare(seed: int, gpus: int, options: argparse.Namespace) -> dict[str, float]:
    """Run one session, and return what it took beside what the best packing would have."""
    cards = machine_of(gpus, real=options.real)
    size, workers = cards[0].memory, options.workers
    tests = random_tests(seed, gpus, size, options.longest)
    start = time.monotonic()
    packed = run(tests, cards, workers, real=options.real)
    took = time.monotonic() - start
    whole = [one._replace(seconds=packed.spans[one.name]) for one in tests]
    alone = search([one._replace(memory=size) for one in whole], gpus, size, workers, 50)
    best_of_whole = search(whole, gpus, size, workers, TRIES)
    best = search(tests, gpus, size, workers, TRIES)
    decided = decide(tests, gpus, size, workers)
    figures = {
        "packed_s": packed.whole,
        "best_found_s": best_of_whole,
        "ratio": packed.whole / best_of_whole,
        "bound_s": bound(whole, gpus, size, workers),
        "alone_s": alone,
        "bodies_s": packed.seconds,
        "bodies_best_found_s": best,
        "bodies_ratio": packed.seconds / best,
        "decisions_ratio": decided / best,
        "fullest": packed.fullest,
        "measured_fullest": packed.measured,
        "passed": packed.passed,
        "session_s": took,
    }
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    """Run the sessions, print, and keep the results if that is asked for."""
    made = parser("Time of packed tests against the best packing.", rounds=1)
    made.add_argument("--workers", type=at_least(1), default=6, help="default 6")
    made.add_argument(
        "--longest", type=above_zero, default=3.0, help="seconds of a test; default 3"
    )
    made.add_argument("--gpus", type=at_least(1), nargs="+", default=[1, 2], help="default 1 2")
    made.add_argument("--real", action="store_true", help="real GPUs, whose memory is held")
    options = made.parse_args()
    rows, data = [], dict[str, object]()
    for gpus in options.gpus:
        runs = [compare(seed, gpus, options) for seed in range(options.rounds)]
        last = runs[-1]
        middle = statistics.median(one["ratio"] for one in runs)
        fullest = max(max(one["fullest"], one["measured_fullest"]) for one in runs)
        rows.append(
            [
                f"{gpus}",
                *(f"{last[key]:.2f}" for key in ("packed_s", "best_found_s", "bound_s", "alone_s")),
                f"{middle:.3f}",
                f"{statistics.median(one['bodies_ratio'] for one in runs):.3f}",
                f"{max(one['decisions_ratio'] for one in runs):.3f}",
                f"{100 * fullest:.1f} %",
                f"{min(one['passed'] for one in runs):.0f}",
            ]
        )
        data[f"{gpus}_gpus"] = {"ratio_to_best_found": round(middle, 3), "runs": runs}
    header = ["GPUs", "packed s", "best found s", "bound s", "alone s", "packed to best"]
    header += ["bodies to best", "decided to best", "fullest card", "passed"]
    title = "Tests packed by memory" + (", on real GPUs" if options.real else "")
    data |= {"tests": TESTS, "workers": options.workers, "longest_s": options.longest}
    data["real"] = options.real
    publish("packing", title, table(header, rows), data, save=options.save)


if __name__ == "__main__":
    main()
