"""Every call whose effect was measured, against the truth: what a forked child's cuInit answers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.touch_cases import CASES, HARMLESS, POISONING, Case

ROOT = Path(__file__).parents[2]


def probe(case: Case) -> dict[str, Any]:
    """Run one case in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.touch_probe", case.name],
        cwd=ROOT,
        env={**os.environ, **dict(case.env)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def missing(case: Case) -> str:
    """The first module the case needs that is not installed here."""
    for name in case.needs:
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return ""


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_probe_and_the_witness_agree_with_a_forked_child(case: Case) -> None:
    if missing(case):
        pytest.skip(f"{missing(case)} is not installed")
    answer = probe(case)
    assert answer["poisons"] is case.poisons, answer
    assert answer["probe"] == ("initialized" if case.poisons else "clean"), answer
    assert (answer["witness"] == "injection") is case.poisons, answer
    assert answer["stack_names_the_case"] is case.poisons, answer


def test_the_table_is_the_one_that_was_measured() -> None:
    assert (len(POISONING), len(HARMLESS)) == (14, 19)
    assert len({case.name for case in CASES}) == 33
    assert all(case.poisons for case in POISONING)
    assert not any(case.poisons for case in HARMLESS)
