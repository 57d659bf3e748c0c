"""The seed's crash with a real driver: its own error without the check, its line with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SEED = PROJECT / "tests" / "engine" / "seed"

pytestmark = pytest.mark.gpu

TEST = """
from engine_with import generate

def test_it():
    tokens, info = generate({backend!r}, {method!r}, device="cuda")
    assert len(tokens) == 4
"""
SCRIPT = """
from seed_script import main

def test_it():
    main({backend!r}, {speculator!r}, device="cuda", asks_torch={asks_torch})
"""


def session(folder: Path, backend: str, method: str | None, *options: str) -> tuple[int, str]:
    """Run one test of the engine in a session of its own; return its exit status and output."""
    return run(folder, TEST.format(backend=backend, method=method), *options)


def run(folder: Path, test: str, *options: str) -> tuple[int, str]:
    """Run a test file; return the session's exit status and output."""
    file = folder / "test_engine.py"
    file.write_text(test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    done = subprocess.run(
        [*command, *options, str(file)],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def _environment() -> dict[str, str]:

    path = os.pathsep.join([str(PROJECT), str(SEED), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path}


def _line() -> int:
    lines = (SEED / "probing_backend.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if "full_graphs" in line)


def test_a_forked_core_after_the_class_body_probe_crashes_with_the_seeds_error(
    tmp_path: Path,
) -> None:
    code, output = session(tmp_path, "probing_backend", "fork")
    assert code == 1, output
    assert "Cannot re-initialize CUDA in forked subprocess" in output


def test_the_check_refuses_the_fork_and_names_the_line(tmp_path: Path) -> None:
    code, output = session(tmp_path, "probing_backend", "fork", "--cuda-fork-check")
    assert code == 1, output
    assert "CudaForkError: fork refused" in output
    assert f"probing_backend.py:{_line()}: class body of ProbingBackend" in output
    assert "RemoteError" not in output


def test_the_repaired_backend_runs_in_a_forked_core(tmp_path: Path) -> None:
    code, output = session(tmp_path, "lazy_backend", "fork", "--cuda-fork-check")
    assert code == 0, output


def test_left_alone_the_engine_asks_the_driver_and_spawns(tmp_path: Path) -> None:
    code, output = session(tmp_path, "probing_backend", None, "--cuda-fork-check")
    assert code == 0, output


@pytest.mark.parametrize("speculator", ["ngram", "eagle"])
def test_the_reports_script_crashes_is_caught_and_is_repaired(
    tmp_path: Path, speculator: str
) -> None:
    def script(backend: str, asks_torch: bool) -> str:
        return SCRIPT.format(backend=backend, speculator=speculator, asks_torch=asks_torch)

    code, output = run(tmp_path, script("probing_backend", asks_torch=True))
    assert code == 1, output
    assert "Cannot re-initialize CUDA in forked subprocess" in output
    assert f'probing_backend.py", line {_line()}, in ProbingBackend' in output
    code, output = run(tmp_path, script("probing_backend", asks_torch=True), "--cuda-fork-check")
    assert code == 1, output
    assert "CudaForkError: fork refused" in output
    assert "seed_script.py" in output
    code, output = run(tmp_path, script("probing_backend", asks_torch=False), "--cuda-fork-check")
    assert code == 0, output
