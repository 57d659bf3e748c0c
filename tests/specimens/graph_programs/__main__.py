"""Ask CUDA, and the checks, about every program: ``python -m tests.specimens.graph_programs``.

Programs run in processes forked from this one before anything touches CUDA. A process is given up
after a program that was not simply right, because a capture that fails may leave it unusable.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.specimens.graph_programs.catalog import PROGRAMS
from tests.specimens.graph_programs.oracle import ask
from tests.specimens.graph_programs.program import Program, Verdict
from tests.specimens.graph_programs.run import judge

__all__ = ["ask_cuda", "ask_the_checks", "main", "run_all"]

Said = dict[str, Any]
Work = Callable[[Program, str], Said]
FINE = ("RIGHT", "PASSES")
MOST_IN_A_PROCESS = 10


class _Running(NamedTuple):
    pid: int
    batch: list[Program]
    begun: float


def ask_cuda(program: Program, backend: str) -> Said:
    """Return the oracle's answer."""
    answer = ask(program, backend)
    return {"verdict": answer.verdict.name if answer.verdict else "BROKEN", "words": answer.words}


def ask_the_checks(program: Program, backend: str) -> Said:
    """Return what the plugin's checks say."""
    passed, words = judge(program, backend)
    return {"verdict": "PASSES" if passed else "FAILS", "words": words}


def run_all(
    programs: Sequence[Program],
    work: Work,
    backend: str,
    *,
    jobs: int,
    seconds: float,
    budget: float = 600.0,
) -> dict[str, Said]:
    """Run ``work`` for each program; return what each said, by name.

    Args:
        programs: What to run.
        work: ``ask_cuda`` or ``ask_the_checks``.
        backend: "software" or "cuda".
        jobs: How many processes at once.
        seconds: The time limit of one program.
        budget: Seconds for all; programs that were not run by then are left out.

    """
    end = time.monotonic() + budget
    waiting = collections.deque(_batches(programs))
    running: dict[int, _Running] = {}  # by descriptor
    texts: dict[int, bytes] = {}
    said: dict[str, Said] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            batch = waiting.popleft()
            out, pid = _start(batch, work, backend, seconds)
            running[out], texts[out] = _Running(pid, batch, time.monotonic()), b""
        if time.monotonic() > end:
            waiting.clear()
            for each in running.values():
                os.kill(each.pid, signal.SIGKILL)
            end = float("inf")
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for out in ready:
            more = os.read(out, 65536)
            texts[out] += more
            if not more:
                os.close(out)
                rest = _ended(running.pop(out), texts.pop(out), said)
                if rest and end < float("inf"):
                    waiting.append(rest)
    return said


def _batches(programs: Sequence[Program]) -> list[list[Program]]:
    """Programs that are right, some together; the others, each alone."""
    fine = [one for one in programs if one.verdict is Verdict.RIGHT]
    others = [[one] for one in programs if one.verdict is not Verdict.RIGHT]
    parts = [fine[at : at + MOST_IN_A_PROCESS] for at in range(0, len(fine), MOST_IN_A_PROCESS)]
    return [*parts, *others]


def _start(batch: list[Program], work: Work, backend: str, seconds: float) -> tuple[int, int]:
    out, into = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(into)
        return out, pid
    os.close(out)
    torch.set_num_threads(1)
    for program in batch:
        signal.alarm(int(seconds))  # its end is told by the exit status
        begun = time.monotonic()
        try:
            said = work(program, backend)
        except BaseException:
            said = {"verdict": "BROKEN", "words": traceback.format_exc()[-600:]}
        said["seconds"] = round(time.monotonic() - begun, 2)
        os.write(into, json.dumps(said).encode() + b"\n")
        if said["verdict"] not in FINE:
            break
    os._exit(0)


def _ended(process: _Running, text: bytes, said: dict[str, Said]) -> list[Program]:
    """Read what a process said; return the programs that it left."""
    status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    answers = [json.loads(each) for each in text.splitlines()]
    for program, answer in zip(process.batch, answers, strict=False):
        said[program.name] = answer
    rest = process.batch[len(answers) :]
    if status and rest:
        seconds = round(time.monotonic() - process.begun, 2)
        words = f"exit status {status}"
        said[rest[0].name] = {"verdict": "DIED", "words": words, "seconds": seconds}
        rest = rest[1:]
    return rest


def _expected(program: Program, checks: bool) -> str:
    if not checks:
        return program.verdict.name
    return "PASSES" if program.verdict is Verdict.RIGHT else "FAILS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the number of programs of which something else was said than expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("software", "cuda"), default="cuda")
    parser.add_argument("--checks", action="store_true", help="our checks instead of CUDA's word")
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="for one program")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for all")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    chosen = [p for p in PROGRAMS if given.backend in p.backends and given.only in p.name]
    work = ask_the_checks if given.checks else ask_cuda
    limits = {"jobs": given.jobs, "seconds": given.seconds, "budget": given.budget}
    said = run_all(chosen, work, given.backend, **limits)
    other = 0
    for program in chosen:
        found = said.get(program.name, {"verdict": "NOT RUN", "words": "no time was left"})
        expected = _expected(program, given.checks)
        if found["verdict"] != expected:
            other += 1
            print(f"{program.name}\n    expected {expected}, {found['verdict']}: {found['words']}")
    print(f"{len(chosen)} programs, {other} of which are not as expected")
    if given.json:
        given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")
    return other


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
