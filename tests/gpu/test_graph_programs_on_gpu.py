"""Every graph program on real CUDA graphs: CUDA says what we expect of it, and so do our checks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.gpu

PROJECT = Path(__file__).parents[2]
JOBS = max(1, min(12, (os.cpu_count() or 2) - 2))


@pytest.mark.parametrize("asked", ["cuda", "checks"])
def test_each_program_gets_its_verdict_on_cuda(asked: str, tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    command = [
        *(sys.executable, "-m", "tests.specimens.graph_programs", "--backend", "cuda"),
        *("--jobs", str(JOBS), "--seconds", "60", "--json", str(answers)),
        *(("--checks",) if asked == "checks" else ()),
    ]
    # A process of its own: it forks children that use CUDA, so nothing may have touched it.
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(json.loads(answers.read_text(encoding="utf-8"))) > 310
