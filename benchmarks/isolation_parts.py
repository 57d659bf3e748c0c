"""The comparisons of the isolation benchmark: which sessions take turns, and their ratios."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import isolation_project as project
from arguments import has_gpu
from isolation_sessions import (
    FORKED,
    PLAIN,
    Timing,
    busy_cores,
    ours,
    project_folder,
    run,
    run_nodeids,
)
from isolation_targets import TARGETS, paired

SLEEP_SECONDS = 2.0
HEAP_MIB = 2048


class Sizes(NamedTuple):
    """How much is measured: tests in a session, rounds, tests of the slow peers, of ``many``."""

    tests: int
    rounds: int
    sample: int
    many: int


@dataclass
class Outcome:
    """What the parts have found: rows of the table, judged targets, and other figures."""

    rows: list[list[str]] = field(default_factory=list)
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, timings: Sequence[Timing]) -> None:
        """Add the row of one kind of session: least and median over the rounds."""
        medians = [timing.median for timing in timings]
        walls = [timing.wall for timing in timings]
        figures = {
            "median_ms": statistics.median(medians),
            "least_median_ms": min(medians),
            "p10_ms": statistics.median(timing.p10 for timing in timings),
            "mean_ms": statistics.median(timing.mean for timing in timings),
            "wall_s": statistics.median(walls),
            "least_wall_s": min(walls),
        }
        self.figures[name] = {key: round(value, 3) for key, value in figures.items()}
        self.rows.append([name, *(f"{value:.2f}" for value in figures.values())])

    def judge(self, name: str, value: float, **more: Any) -> None:
        """Compare a figure with its target."""
        self.targets[name] = TARGETS[name].judge(value, **more)


HEADER = ["a test", "median ms", "least median", "p10", "mean", "wall s", "least wall"]
_Session = Callable[[], Timing]


def _take_turns(sessions: dict[str, _Session], rounds: int) -> dict[str, list[Timing]]:
    """Run each kind of session once a round; the order turns round, too."""
    timings: dict[str, list[Timing]] = {name: [] for name in sessions}
    names = list(sessions)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            _say(f"round {number + 1}: {name}")
            timings[name].append(sessions[name]())
    return timings


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _medians(timings: Sequence[Timing]) -> list[float]:
    return [timing.median for timing in timings]


def _ratio(out: Outcome, target: str, ours_: Sequence[float], peer: Sequence[float]) -> None:
    out.judge(target, paired(ours_, peer), of_least=round(min(ours_) / min(peer), 4))


def forks(out: Outcome, sizes: Sizes, wanted: Sequence[str]) -> None:
    """``fork`` and ``forkserver`` against pytest-forked; with ``spawn_peer`` against spawn."""
    with project_folder() as folder, project_folder() as slow:
        project.write_trivial(folder, sizes.tests)
        project.write_spawned(slow, sizes.sample)
        n = sizes.tests
        sessions: dict[str, _Session] = {
            "no isolation": lambda: run(folder, PLAIN, n),
            "pytest-forked": lambda: run(folder, FORKED, n),
        }
        if "fork" in wanted:
            sessions["fork"] = lambda: run(folder, ours("fork"), n)
        if "forkserver" in wanted:
            sessions["forkserver"] = lambda: run(folder, ours("forkserver"), n)
            sessions["multiprocessing spawn"] = lambda: run(slow, PLAIN, sizes.sample)
        timings = _take_turns(sessions, sizes.rounds)
    for name, of_kind in timings.items():
        out.add(name, of_kind)
    forked = timings["pytest-forked"]
    if "fork" in wanted:
        _ratio(out, "fork_to_forked", _medians(timings["fork"]), _medians(forked))
    if "forkserver" in wanted:
        server = timings["forkserver"]
        _ratio(out, "forkserver_to_forked", _medians(server), _medians(forked))
        spawned = _medians(timings["multiprocessing spawn"])
        _ratio(out, "spawn_to_forkserver", spawned, _medians(server))
        walls = [timing.wall for timing in server]
        _ratio(out, "run_to_forked", walls, [timing.wall for timing in forked])


def heap(out: Outcome, sizes: Sizes) -> None:
    """``forkserver`` and, for the difference, ``fork`` with memory filled in the parent."""
    with project_folder() as folder:
        project.write_trivial(folder, sizes.tests)
        sessions: dict[str, _Session] = {}
        for method in ("forkserver", "fork"):
            for mib in (0, HEAP_MIB):
                name = f"{method}, parent {'+ 2 GiB' if mib else 'as it is'}"
                sessions[name] = _with_heap(folder, method, sizes.tests, mib)
        timings = _take_turns(sessions, sizes.rounds)
    for name, of_kind in timings.items():
        out.add(name, of_kind)
    _ratio(
        out,
        "forkserver_heap",
        _medians(timings["forkserver, parent + 2 GiB"]),
        _medians(timings["forkserver, parent as it is"]),
    )


def _with_heap(folder: Path, method: str, tests: int, mib: int) -> _Session:
    return lambda: run(folder, ours(method), tests, heap_mib=mib)


def spawn(out: Outcome, sizes: Sizes) -> None:
    """``spawn`` against ``pytest NODEID`` while every core has something else to do."""
    with project_folder() as folder, busy_cores():
        project.write_trivial(folder, sizes.sample, files=1)
        nodeids = [f"test_trivial_0.py::test_{n}" for n in range(sizes.sample)]
        timings = _take_turns(
            {
                "spawn, busy cores": lambda: run(folder, ours("spawn"), sizes.sample),
                "pytest NODEID, busy cores": lambda: run_nodeids(folder, nodeids),
            },
            sizes.rounds,
        )
    for name, of_kind in timings.items():
        out.add(name, of_kind)
    # Whole sessions: an interpreter that is started ahead is paid for before its test, and there
    # are too few tests for that to even out.
    spawned = [timing.wall for timing in timings["spawn, busy cores"]]
    nodeid = [timing.wall for timing in timings["pytest NODEID, busy cores"]]
    _ratio(out, "spawn_to_nodeid", spawned, nodeid)


def hidden(out: Outcome, sizes: Sizes) -> None:
    """``spawn`` of tests that take longer than a start: what each costs beyond its own time."""
    tests = min(sizes.sample, 6)
    with project_folder() as folder:
        project.write_sleeping(folder, tests, SLEEP_SECONDS)
        nodeids = [f"test_sleeping.py::test_{n}" for n in range(2)]
        timings = _take_turns(
            {
                "spawn, tests of 2 s": lambda: run(folder, ours("spawn"), tests),
                "pytest NODEID, tests of 2 s": lambda: run_nodeids(folder, nodeids),
            },
            sizes.rounds,
        )
    for name, of_kind in timings.items():
        out.add(name, of_kind)
    beyond = {
        name: [timing.mean - SLEEP_SECONDS * 1000 for timing in of_kind]
        for name, of_kind in timings.items()
    }
    extra = beyond["spawn, tests of 2 s"]
    value = paired(extra, beyond["pytest NODEID, tests of 2 s"])
    out.judge("spawn_hidden", value, ms_a_test=round(statistics.median(extra), 1))


def many(out: Outcome, sizes: Sizes) -> None:
    """A long run by ``forkserver``: whether cost or memory grow and whether anything is left."""
    with project_folder() as folder:
        project.write_bare(folder, sizes.many)
        _say(f"{sizes.many} tests, forkserver")
        server = run(folder, ours("forkserver"), sizes.many)
        _say(f"{sizes.many} tests, no isolation")
        plain = run(folder, PLAIN, sizes.many)
    out.add(f"forkserver, {sizes.many} tests", [server])
    out.add(f"no isolation, {sizes.many} tests", [plain])
    tenth = len(server.gaps) // 10
    parts = [
        statistics.median(server.gaps[start : start + tenth])
        for start in range(0, tenth * 10, tenth)
    ]
    tenths = [round(part, 3) for part in parts]
    out.judge("many_flat_cost", parts[-1] / parts[0], median_ms_by_tenth=tenths)
    growth, without = (_growth_kib(timing) for timing in (server, plain))
    more = {"kib_a_test": round(growth, 3), "without_isolation": round(without, 3)}
    out.judge("many_flat_memory", growth / without, **more)
    first, last = server.held[0]["descriptors"], server.held[-1]["descriptors"]
    left = [*server.left, *["descriptor"] * max(0, last - first)]
    out.judge("many_left", len(left), what=left[:10])


def _growth_kib(timing: Timing) -> float:
    """Return the growth of the pytest process in KiB a test, the first notes left out."""
    first, last = timing.held[1], timing.held[-1]
    return (last["private_kib"] - first["private_kib"]) / max(1, last["tests"] - first["tests"])


def cuda(out: Outcome, sizes: Sizes) -> None:
    """A CUDA tensor as the test's first act: ``forkserver`` against spawn, on a GPU."""
    if not has_gpu():
        _say("no GPU here: the comparison of first CUDA tensors is left out")
        return
    tests = sizes.sample
    with project_folder() as folder:
        project.write_cuda(folder, tests)
        timings = _take_turns(
            {
                "forkserver, CUDA tensor": lambda: run(
                    folder, [*ours("forkserver"), "test_cuda.py"], tests
                ),
                "spawn, CUDA tensor": lambda: run(folder, [*ours("spawn"), "test_cuda.py"], tests),
                "multiprocessing spawn, CUDA tensor": lambda: run(
                    folder, [*PLAIN, "test_spawned.py"], tests
                ),
            },
            sizes.rounds,
        )
    for name, of_kind in timings.items():
        out.add(name, of_kind)
    _ratio(
        out,
        "cuda_spawn_to_forkserver",
        _medians(timings["multiprocessing spawn, CUDA tensor"]),
        _medians(timings["forkserver, CUDA tensor"]),
    )
