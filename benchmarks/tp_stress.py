"""Starts and ends engines of several ranks, and kills a random rank at a random time of each.

A killed rank has to end the engine with an error that names it, soon, and nothing may be left: no
process (and so none of its ports), no open descriptor, no file in shared memory or in the temporary
folder. Where the kill comes too late the tokens have to be those of an engine of one process. The
exit status says whether all of this held.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from arguments import at_least
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sample_engine import LLM, EngineError, SamplingParams

PROMPTS = ["def quick_sort(", "import os\n", "class Tree:\n    def"]
PARAMS = SamplingParams(max_tokens=96, ignore_eos=True)
MOST_SECONDS = 10.0  # from the kill to the error, and from the error to the end of all processes
# What torch, gloo, NCCL and multiprocessing call their files in /dev/shm: others use it, too.
_SHARED = ("torch_", "gloo", "nccl", "psm_", "pym", "sem.")


@dataclasses.dataclass
class Cycle:
    """What became of one engine."""

    method: str
    during: str  # the start, the work, or nothing: the kill came too late
    start_seconds: float = 0.0
    work_seconds: float = 0.0
    named: bool = True  # the error says which rank it was
    seconds: float = 0.0  # from the kill to the error
    wrong: list[str] = dataclasses.field(default_factory=list)


class Killer(threading.Thread):
    """Kills one of this process's children, some time after :meth:`begin`."""

    def __init__(self, after: float, chance: random.Random, before: set[int]) -> None:
        super().__init__(daemon=True)
        self._after, self._chance, self._before = after, chance, before
        self._begun, self._over = threading.Event(), threading.Event()
        self.killed = 0  # the pid
        self.at = 0.0

    def run(self) -> None:
        """Wait and kill."""
        self._begun.wait()
        if self._over.wait(self._after):
            return
        while not self._over.is_set():
            ranks = sorted(children() - self._before)
            if ranks:
                pid = self._chance.choice(ranks)
                self.at = time.monotonic()
                self.killed = pid
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.01)

    def begin(self) -> None:
        """Let the time run."""
        self._begun.set()

    def end(self) -> None:
        """Kill no more."""
        self._over.set()
        self._begun.set()
        self.join()


def children() -> set[int]:
    """The ranks that this process has started and that are not reaped."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_bytes()
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        parent = int(stat.rpartition(b")")[2].split()[1])
        if parent == os.getpid() and b"resource_tracker" not in command:
            found.add(int(name))
    return found


def leftovers() -> dict[str, set[str]]:
    """What an engine might leave behind, as it is now."""
    return {
        "process": {str(pid) for pid in children()},
        "descriptor": set(os.listdir("/proc/self/fd")),
        "shared memory": {name for name in os.listdir("/dev/shm") if name.startswith(_SHARED)},
        "temporary file": set(os.listdir(tempfile.gettempdir())),
    }


class Kill(NamedTuple):
    """When to kill a rank: so many seconds after the start has begun, or the work."""

    phase: str
    after: float


def run_cycle(
    method: str, ranks: int, device: str, kill: Kill, expected: list[tuple[int, ...]]
) -> Cycle:
    """Start an engine, work with it, and see how it takes the kill."""
    before = leftovers()
    killer = Killer(kill.after, random.Random(kill.after), children())
    cycle = Cycle(method, "the start")
    error: Exception | None = None
    killer.start()
    if kill.phase == "start":
        killer.begin()
    began = time.monotonic()
    try:
        with LLM(
            model="tiny", device=device, tensor_parallel_size=ranks, worker_method=method
        ) as llm:
            cycle.during, cycle.start_seconds = "the work", time.monotonic() - began
            killer.begin()
            outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            if [output.token_ids for output in outputs] != expected:
                cycle.wrong.append("other tokens than those of one process")
            cycle.work_seconds = time.monotonic() - began - cycle.start_seconds
            cycle.during = "nothing: the kill came too late"
    except EngineError as raised:
        error = raised
    killer.end()
    ended = time.monotonic()
    if error is None:
        cycle.wrong += [f"no error although rank {killer.killed} was killed"] * (
            killer.killed != 0 and cycle.during == "the start"
        )
    elif not killer.killed:
        cycle.wrong.append(f"an error without a kill: {error}")
    else:
        cycle.seconds = ended - killer.at
        cycle.named = f"pid {killer.killed}," in str(error) and "SIGKILL" in str(error)
        if not cycle.named:
            cycle.wrong.append(f"the error does not name the killed {killer.killed}: {error}")
        if cycle.seconds > MOST_SECONDS:
            cycle.wrong.append(f"{cycle.seconds:.1f} seconds from the kill to the error")
    cycle.wrong += still_there(before)
    return cycle


def still_there(before: dict[str, set[str]]) -> list[str]:
    """What of an engine is still there after some time."""
    deadline = time.monotonic() + MOST_SECONDS
    while True:
        more = {what: now - before[what] for what, now in leftovers().items()}
        if not any(more.values()) or time.monotonic() > deadline:
            return [f"left behind: {what} {names}" for what, names in more.items() if names]
        time.sleep(0.05)


def one_process(device: str) -> list[tuple[int, ...]]:
    """The tokens of an engine of one process."""
    with LLM(model="tiny", device=device, worker_method="spawn") as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [output.token_ids for output in outputs]


def shown(cycles: list[Cycle]) -> str:
    """The outcome as a table."""
    rows = []
    for (method, during), count in sorted(Counter((c.method, c.during) for c in cycles).items()):
        those = [c for c in cycles if (c.method, c.during) == (method, during)]
        longest = max(c.seconds for c in those)
        wrong = sum(bool(c.wrong) for c in those)
        rows.append([f"{method}, during {during}", str(count), f"{longest:.2f}", str(wrong)])
    header = ["a rank is killed", "cycles", "longest, kill to error (s)", "wrong"]
    return table(header, rows)


def main() -> int:
    """Read the options, and work in a temporary folder that nobody else uses."""
    options = parser("Engines of several ranks, one of which is killed.", rounds=100)
    options.add_argument("--ranks", type=at_least(1), default=2, help="default 2")
    options.add_argument("--device", default="cpu", help="default cpu")
    options.add_argument("--seed", type=int, default=0, help="default 0")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as own:  # what lies in it is ours
        os.environ["TMPDIR"] = tempfile.tempdir = own
        return stress(given)


def stress(given: argparse.Namespace) -> int:
    """Run the cycles; 1 if anything was wrong."""
    chance = random.Random(given.seed)
    expected = one_process(given.device)
    # On a GPU the parent must not touch it, and a fork from here would be refused if it did.
    assert not torch.cuda.is_initialized()
    cycles: list[Cycle] = []
    usual: dict[str, Cycle] = {}
    for number in range(given.rounds):
        # Forks are quick; a fresh interpreter is in the importing for most of its time.
        method = "spawn" if number % 8 in (3, 6) else "fork"
        if method not in usual:  # the first of each is left alone, for its length
            kill = Kill("start", 3600.0)
        elif number % 2:
            kill = Kill("start", chance.uniform(0.0, usual[method].start_seconds))
        else:
            kill = Kill("work", chance.uniform(0.0, usual[method].work_seconds))
        cycle = run_cycle(method, given.ranks, given.device, kill, expected)
        if cycle.work_seconds:  # it was not killed: the quickest such says what is usual
            before = usual.setdefault(method, cycle)
            before.start_seconds = min(before.start_seconds, cycle.start_seconds)
            before.work_seconds = min(before.work_seconds, cycle.work_seconds)
        cycles.append(cycle)
        words = f": {'; '.join(cycle.wrong)}" if cycle.wrong else ""
        print(
            f"{number + 1}/{given.rounds} {method}, {cycle.during}, {cycle.seconds:.2f} s{words}",
            file=sys.stderr,
            flush=True,
        )
    wrong = [f"- cycle {n}: {'; '.join(c.wrong)}" for n, c in enumerate(cycles, 1) if c.wrong]
    text = "\n".join([shown(cycles), "", f"{len(cycles)} cycles, {len(wrong)} wrong.", *wrong])
    publish(
        "tp_stress",
        f"{given.ranks} ranks, one of which is killed at a random time",
        text,
        {"ranks": given.ranks, "cycles": [dataclasses.asdict(cycle) for cycle in cycles]},
        save=given.save,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
