"""``python -m pytest_cudafork doctor``: its arguments, what it prints, its exit status."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import Any

from pytest_cudafork._version import version
from pytest_cudafork.counted import count_of
from pytest_cudafork.doctor import gpus
from pytest_cudafork.doctor.finding import Finding, Level
from pytest_cudafork.doctor.flash_attention import examine_flash_attention
from pytest_cudafork.doctor.start_up import examine_start_up
from pytest_cudafork.doctor.torch_build import (
    examine_import,
    examine_torch,
    examine_triton,
    read_torch,
)
from pytest_cudafork.doctor.variables import examine_variables
from pytest_cudafork.documents.form import head
from pytest_cudafork.documents.writing import print_json, printable

HEALTHY, FOUND, USAGE = 0, 1, 2


def main(args: Sequence[str]) -> int:
    """Examine this environment and print what was found.

    Args:
        args: What follows ``python -m pytest_cudafork doctor``.

    Returns:
        0: there is no problem. 1: there is one (with ``--strict``, or a warning). 2: the arguments
        are wrong, or this is not Linux.

    """
    parser = _parser()
    given = parser.parse_args(args)
    if sys.platform != "linux":
        parser.exit(USAGE, f"{parser.prog}: error: it works on Linux only, not {sys.platform}\n")
    findings, facts = examine(imports=not given.no_imports)
    bad = {Level.PROBLEM, Level.WARNING} if given.strict else {Level.PROBLEM}
    status = FOUND if any(each.level in bad for each in findings) else HEALTHY
    if given.json:
        plain = [each.to_plain() for each in findings]
        told = {"version": version, "status": status, "findings": plain, "facts": facts}
        print_json({**head("doctor"), **told})
    else:
        _print(findings)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cudafork doctor",
        description="Say what of this machine and environment changes what CUDA and forks do: "
        "start method, driver, torch, Triton, FlashAttention, variables, and what runs at the "
        "start of every process. CUDA is not initialized for it. Exit status: 0 without a "
        "problem, 1 with one, 2 on wrong usage.",
    )
    add = parser.add_argument
    add("--json", action="store_true", help="Write findings and facts as JSON to stdout.")
    add("--strict", action="store_true", help="Let a warning end with status 1, too.")
    add("--no-imports", action="store_true",
        help="Judge torch and FlashAttention by their files alone, instead of importing each in a "
        "process of its own, which takes seconds.")  # fmt: skip
    return parser


def examine(*, imports: bool) -> tuple[list[Finding], dict[str, Any]]:
    """Examine this environment.

    Args:
        imports: Whether torch and what is built for it may be imported, each in a child.

    Returns:
        The findings in the order in which they are printed, and what was read, as texts, numbers,
        lists and dicts.

    """
    machine = gpus.look()
    torch, findings = read_torch()
    at_start, start_facts = examine_start_up()
    findings = [*at_start, *gpus.examine(machine), *findings]
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "start_up": start_facts,
        "machine": machine.to_plain(),
        "torch": torch._asdict(),
    }
    if torch.version:
        findings += examine_torch(torch, machine)
        if imports:
            more, facts["import torch"] = examine_import("torch", "torch")
            findings += more
    findings += examine_triton(torch)
    flash, facts["flash_attention"] = examine_flash_attention(torch, machine, imports=imports)
    return [*findings, *flash, *examine_variables(machine)], facts


def _print(findings: Sequence[Finding]) -> None:
    for each in findings:
        for line in each.lines():
            sys.stdout.write(printable(line) + "\n")
    counts = [
        count_of(number, level.value)
        for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)
        if (number := sum(each.level is level for each in findings))
    ]
    sys.stdout.write(f"{', '.join(counts) or 'nothing to tell'}\n")
