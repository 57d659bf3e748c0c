"""Ask CUDA, and the checks, about every program: ``python -m tests.specimens.graph_programs``.

Programs run in processes forked from this one before anything touches CUDA.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.specimens.graph_programs.catalog import PROGRAMS
from tests.specimens.graph_programs.oracle import ask
from tests.specimens.graph_programs.program import Program, Verdict
from tests.specimens.graph_programs.run import expected_outcomes, judge
from tests.support.forked_batches import Limits, Said, run_batches

__all__ = ["main", "run_programs"]

FINE = ("RIGHT", "PASSES")
MOST_IN_A_PROCESS = 10


def run_programs(
    programs: Sequence[Program], backend: str, limits: Limits, *, checks: bool
) -> dict[str, Said]:
    """Ask CUDA, or the plugin's checks, about each program; return the answers by name.

    An answer has ``verdict`` and ``words``. Programs that were not run for want of time have none.
    """

    def work(program: Program) -> Said:
        torch.set_num_threads(1)
        if checks:
            outcome, words = judge(program, backend)
            return {"verdict": outcome, "words": words}
        answer = ask(program, backend)
        name = answer.verdict.name if answer.verdict else "BROKEN"
        return {"verdict": name, "words": answer.words}

    said = run_batches(_batches(programs), work, lambda said: said["verdict"] in FINE, limits)
    return {one.name: _told(said[id(one)]) for one in programs if id(one) in said}


def _batches(programs: Sequence[Program]) -> list[list[Program]]:
    """Programs that are right, some together; the others, each alone."""
    fine = [one for one in programs if one.verdict is Verdict.RIGHT]
    others = [[one] for one in programs if one.verdict is not Verdict.RIGHT]
    parts = [fine[at : at + MOST_IN_A_PROCESS] for at in range(0, len(fine), MOST_IN_A_PROCESS)]
    return [*parts, *others]


def _told(said: Said) -> Said:
    if "died" in said:
        return {"verdict": "DIED", "words": f"exit status {said['died']}", **said}
    if "raised" in said:
        return {"verdict": "BROKEN", "words": said["raised"], **said}
    return said


def _expected(program: Program, backend: str, *, checks: bool) -> tuple[str, ...]:
    if not checks:
        return (program.verdict.name,)
    return expected_outcomes(program, backend)


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
    limits = Limits(given.jobs, given.seconds, given.budget)
    said = run_programs(chosen, given.backend, limits, checks=given.checks)
    other = 0
    for program in chosen:
        found = said.get(program.name, {"verdict": "NOT RUN", "words": "no time was left"})
        expected = _expected(program, given.backend, checks=given.checks)
        if found["verdict"] not in expected:
            other += 1
            wanted = " or ".join(expected)
            print(f"{program.name}\n    expected {wanted}, {found['verdict']}: {found['words']}")
    print(f"{len(chosen)} programs, {other} of which are not as expected")
    if given.json:
        given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")
    return other


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
