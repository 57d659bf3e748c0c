"""Does anything pile up? Loops of isolated tests, of audits and of captures, with a look between.

Each loop runs in a process of its own, which counts now and then what it and the processes that it
keeps have: memory, descriptors, processes, files in its temporary folder, and what of a GPU is in
use. Memory is that of all of them together, pages that they share counted once (``Pss``), without
pages of libraries and other files: of those a process has less while others on the machine map
them, too. It is judged by its slope over the last half of the loop: at most 1 % of what was there
at the start for 10,000 turns, where it has grown by more than a few pages at all; the others must
not be more at the end than in the first half. A session of pytest keeps a report of each of its
tests: what the same session keeps without isolation is taken off. So is what torch keeps by
itself of each capture on a GPU, and what its profiler keeps of each warm-up whose kernels it lists.

    python benchmarks/soak.py --tests 100000 --audits 50 --captures 10000 --save
    python benchmarks/soak.py --tests 0 --audits 0 --captures 10000 --device cuda --save

With ``--device cuda`` the captures are CUDA's, on a GPU that nothing else may use. ``--jobs`` runs
several loops at once, which share nothing that is counted.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from arguments import at_least, needs_gpu
from results_file import parser, publish, table

SAMPLES = 100
"""How often a loop is looked at."""
MOST_PERCENT = 1.0
"""How much memory may grow in 10,000 turns, of what was there at the start."""
FEWEST_LOOKS = 3
"""With fewer nothing can be seen to grow: what was there last is compared with the first half."""
FEW_PAGES = 1 << 18
"""Bytes by which memory differs from one look to the next without growing."""
_MADE = ("Pss_Anon:", "Pss_Shmem:")
"""Lines of ``smaps_rollup`` for memory that no file on a disk backs."""
HEADER = (
    *("loop", "turns", "s", "MiB at start", "MiB at end", "% for 10,000"),
    *("descriptors", "processes", "files", "MiB on the GPU", "verdict"),
)


@dataclass(frozen=True)
class Sample:
    """What a process and those below it have after some turns; memory in bytes."""

    turns: int
    memory: float
    descriptors: int
    processes: int
    files: int
    device: int = 0


@dataclass(frozen=True)
class Loop:
    """A loop, as it went: its samples, and what of its memory is not its own."""

    name: str
    seconds: float
    samples: Sequence[Sample]
    off: float = 0.0
    """Bytes for a turn that the same loop takes without what is looked at."""


def slope(samples: Sequence[Sample]) -> float:
    """Return by how many bytes memory grows for a turn, by least squares over the last half."""
    half = samples[len(samples) // 2 :]
    turns = [each.turns for each in half]
    mean = sum(turns) / len(turns)
    spread = sum((each - mean) ** 2 for each in turns)
    return sum((each.turns - mean) * each.memory for each in half) / spread if spread else 0.0


def percent(loop: Loop) -> float:
    """Return the growth of memory for 10,000 turns, in per cent of the first sample."""
    return 100 * 10_000 * (slope(loop.samples) - loop.off) / loop.samples[0].memory


def complaints(loop: Loop) -> list[str]:
    """Return what piles up in a loop."""
    middle, last = len(loop.samples) // 2, loop.samples[-1]
    grown = (slope(loop.samples) - loop.off) * (last.turns - loop.samples[middle].turns)
    found = ["memory"] if percent(loop) > MOST_PERCENT and grown > FEW_PAGES else []
    for name in ("descriptors", "processes", "files", "device"):
        before = max(getattr(each, name) for each in loop.samples[: middle + 1])
        found += [name] if getattr(last, name) > before else []
    return found


def _is_judged(loop: Loop) -> bool:
    return len(loop.samples) >= FEWEST_LOOKS


def look(turns: int, folder: Path, device: int = 0) -> Sample:
    """Return what this process and those below it have, and so many bytes on a GPU."""
    below = [os.getpid(), *_descendants(os.getpid())]
    return Sample(
        turns,
        sum(map(_memory, below)),
        len(os.listdir("/proc/self/fd")),
        len(below),
        sum(1 for _ in folder.rglob("*")),
        device,
    )


def _memory(pid: int) -> int:
    """Return the bytes that a process has made, of pages that others have as well its share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0  # it has ended
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_MADE))


def _descendants(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(text) for task in tasks for text in (task / "children").read_text().split()]
    except OSError:
        return []
    return [each for child in children for each in (child, *_descendants(child))]


def _looks(
    turns: int, turn: Callable[[int], object], on_device: Callable[[], int] = lambda: 0
) -> None:
    """Take turns, and write a line of JSON for each look."""
    folder = Path(tempfile.gettempdir())
    for number in range(1, turns + 1):
        turn(number)
        if number % max(1, turns // SAMPLES) == 0:
            print(json.dumps(asdict(look(number, folder, on_device()))), flush=True)


def audits(turns: int) -> None:
    """Audit a package of the standard library, time and again."""
    from pytest_cudafork.imports.api import audit

    _looks(turns, lambda number: audit("json"))


def captures(turns: int, device: str) -> None:
    """Capture a function and compare its replays, time and again."""
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    weight = torch.ones(16, 16, device=device)

    def turn(number: int) -> None:
        x = torch.full((4, 16), float(number % 7), device=device)
        assert_replay_equals_eager(
            lambda x: torch.relu(x @ weight), (x,), vary=[lambda: x.add_(1)],
            backend="cuda" if device == "cuda" else "software",
        )  # fmt: skip

    def in_use() -> int:
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    _looks(turns, turn, in_use if device == "cuda" else lambda: 0)


def profiles(turns: int) -> None:
    """Profile the same function with torch's own profiler, time and again."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    x, weight = torch.ones(4, 16, device="cuda"), torch.ones(16, 16, device="cuda")

    def turn(number: int) -> None:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.relu(x @ weight)
            torch.cuda.synchronize()
        profiler.profiler.kineto_results.events()

    _looks(turns, turn)


def graphs(turns: int) -> None:
    """Capture and replay the same function by torch alone, time and again."""
    import torch

    x, weight = torch.ones(4, 16, device="cuda"), torch.ones(16, 16, device="cuda")

    def turn(number: int) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.relu(x @ weight)
        graph.replay()
        torch.cuda.synchronize()

    torch.relu(x @ weight)  # what is made at the first call is no part of a capture
    _looks(turns, turn)


BY_TORCH = {"profiles": profiles, "graphs": graphs}
"""Loops on a GPU of what a capture asks of torch: what they keep is not ours."""

PLUGIN = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
import json, soak

turns = 0

def pytest_runtest_logfinish():
    global turns
    turns += 1
    if turns % {every} == 0:
        with open({out!r}, "a") as file:
            file.write(json.dumps(soak.asdict(soak.look(turns, Path({folder!r})))) + "\\n")
"""


def session(turns: int, method: str) -> list[Sample]:
    """Run a session of so many tests; return the samples of its process."""
    with tempfile.TemporaryDirectory() as made:
        folder, out = Path(made, "project"), Path(made, "samples")
        temporary = Path(made, "tmp")
        folder.mkdir()
        temporary.mkdir()
        text = (
            f"import pytest\n\n@pytest.mark.parametrize('n', range({turns}))\ndef test(n): pass\n"
        )
        (folder / "test_many.py").write_text(text, encoding="utf-8")
        plugin = PLUGIN.format(
            here=str(Path(__file__).parent), every=max(1, turns // SAMPLES), out=str(out),
            folder=str(temporary),
        )  # fmt: skip
        (folder / "conftest.py").write_text(plugin, encoding="utf-8")
        options = () if method == "none" else (f"--cuda-fork-isolate={method}",)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if f"{turns} passed" not in done.stdout:
            raise SystemExit(f"{method}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _samples(out.read_text(encoding="utf-8"))


def _samples(text: str) -> list[Sample]:
    return [Sample(**json.loads(line)) for line in text.splitlines()]


def in_a_process(name: str, turns: int, device: str) -> list[Sample]:
    """Run a loop in a process of its own; return its samples."""
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, __file__, "--loop", name, str(turns), device]
        done = subprocess.run(
            command, env={**os.environ, "TMPDIR": made}, stdout=subprocess.PIPE, text=True,
            check=True,
        )  # fmt: skip
        return _samples(done.stdout)


def timed(name: str, run: Callable[[], list[Sample]]) -> Loop:
    """Run a loop."""
    began = time.perf_counter()
    samples = run()
    return Loop(name, time.perf_counter() - began, samples)


def report(loops: Sequence[Loop]) -> tuple[str, dict[str, Any]]:
    """Return the table, and what goes into the line of JSON."""
    rows, data = [], {}
    for loop in loops:
        first, last, wrong = loop.samples[0], loop.samples[-1], complaints(loop)
        verdict = f"piles up: {', '.join(wrong)}" if wrong else "nothing piles up"
        verdict = verdict if _is_judged(loop) else "too few turns to tell"
        rows.append([
            *(loop.name, f"{last.turns:,}", f"{loop.seconds:.0f}", f"{first.memory / 2**20:.1f}"),
            *(f"{last.memory / 2**20:.1f}", f"{percent(loop):.2f}", f"{last.descriptors}"),
            *(f"{last.processes}", f"{last.files}", f"{last.device / 2**20:.1f}", verdict),
        ])  # fmt: skip
        named = [each.name for each in fields(Sample)]
        data[loop.name] = {
            "percent": round(percent(loop), 3), "wrong": wrong,
            "samples": [[getattr(each, name) for name in named] for each in loop.samples],
        }  # fmt: skip
    return table(HEADER, rows), {"loops": data}


def main() -> int:
    """Run the loops; the exit status is 1 if something piles up, or a loop cannot be judged."""
    made = parser("Does anything pile up?")
    made.add_argument(
        "--tests", type=at_least(0), default=100_000, help="isolated tests of a session; 0: none"
    )
    made.add_argument("--audits", type=at_least(0), default=50, help="0: none")
    made.add_argument("--captures", type=at_least(0), default=10_000, help="0: none")
    made.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of the captures; default cpu"
    )
    made.add_argument("--jobs", type=at_least(1), default=1, help="loops at a time; default 1")
    made.add_argument("--loop", nargs=3, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.loop:
        name, turns, device = options.loop
        if name == "audits":
            audits(int(turns))
        elif name in BY_TORCH:
            BY_TORCH[name](int(turns))
        else:
            captures(int(turns), device)
        return 0
    if not (options.tests or options.audits or options.captures):
        made.error("there is nothing to do: --tests, --audits and --captures are all 0")
    if options.captures and options.device == "cuda":
        needs_gpu(made)
    with ThreadPoolExecutor(options.jobs) as pool:
        methods = ("none", "fork", "forkserver") if options.tests else ()
        sessions = {
            method: pool.submit(
                timed, f"tests by {method}", functools.partial(session, options.tests, method)
            )
            for method in methods
        }
        others = {
            name: pool.submit(
                timed, name, functools.partial(in_a_process, name, turns, options.device)
            )
            for name in ("audits", "captures")
            if (turns := getattr(options, name))
        }
    loops, words = {name: each.result() for name, each in others.items()}, ""
    if sessions:
        kept = slope(sessions.pop("none").result().samples)
        tests = {method: replace(each.result(), off=kept) for method, each in sessions.items()}
        loops = {**tests, **loops}
        words = f"\n\nA session of pytest keeps {kept:.0f} bytes of each test by itself, taken off."
    if options.captures and options.device == "cuda":
        by_torch = {
            name: slope(in_a_process(name, options.captures, options.device)) for name in BY_TORCH
        }
        loops["captures"] = replace(loops["captures"], off=sum(by_torch.values()))
        told = ", ".join(f"{name} {kept:.0f}" for name, kept in by_torch.items())
        words += f"\n\nBytes that torch keeps of each turn by itself, taken off: {told}."
    text, data = report(list(loops.values()))
    publish("soak", "What piles up in long loops", text + words, data, save=options.save)
    return int(any(complaints(loop) or not _is_judged(loop) for loop in loops.values()))


if __name__ == "__main__":
    sys.exit(main())
