"""Numbers on the command lines of benchmarks: one that makes no sense is told, not run with."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.repo.conftest import BENCHMARKS
from tests.repo.sources import PROJECT


def test_a_number_of_at_least_so_many_is_read_or_told(benchmark: Callable[[str], Any]) -> None:
    read = benchmark("arguments").at_least(1)
    assert read("1") == 1
    for text, words in (("0", "0: at least 1"), ("-2", "at least 1"), ("x", "no whole number")):
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            read(text)


def test_a_number_above_zero_is_read_or_told(benchmark: Callable[[str], Any]) -> None:
    read = benchmark("arguments").above_zero
    assert read("0.5") == 0.5
    for text in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="number"):
            read(text)


def test_the_jobs_of_the_catch_rate_are_at_least_one(
    benchmark: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark("catch_rate").main(["--jobs", "0"])
    assert ended.value.code == 2
    assert "--jobs: 0: at least 1" in capsys.readouterr().err


GPU = (
    *("touch_table.py", "bench_attention.py", "bench_engine.py", "sweep_attention.py"),
    *("sweep_model_kernels.py", "first_tensor.py", "catch_rate.py --gpu --parts graphs"),
    *("catch_rate.py --gpu --parts forks", "soak.py --device cuda --tests 0 --audits 0"),
    "bench_speculation.py --device cuda",
)


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU, which is measured")
@pytest.mark.parametrize("command", GPU)
def test_without_a_gpu_what_measures_one_says_so(command: str) -> None:
    script, *options = command.split()
    if find_spec("torch") is None:
        pytest.skip("most of these scripts import torch")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *options], capture_output=True, text=True, check=False
    )
    assert "there is no NVIDIA GPU here (no /dev/nvidiactl)" in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("name", ["catch_rate", "faults", "real_libraries", "release_pairs"])
def test_a_word_that_chooses_nothing_is_told_with_what_there_is(
    name: str, benchmark: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark(name).main(["--only", "no such word"])
    assert ended.value.code == 2
    assert "--only: 'no such word' is in none of " in capsys.readouterr().err


def test_a_session_that_is_not_known_is_told_with_those_that_are(
    benchmark: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_isolation_cpu.py", "--only", "fork,bogus"])
    with pytest.raises(SystemExit) as ended:
        benchmark("bench_isolation_cpu").arguments()
    assert ended.value.code == 2
    assert "--only: 'bogus' is in none of no isolation, pytest-forked" in capsys.readouterr().err


def test_a_fault_is_not_given_to_a_plugin_that_is_not_installed(
    benchmark: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sessions = benchmark("fault_sessions")
    monkeypatch.setattr(
        sessions.importlib.util, "find_spec", lambda name: name == "pytest_cudafork" or None
    )
    assert sessions.lacking([("fork", False), ("none", False), ("helper-spawn", False)]) == []
    assert sessions.lacking([("fork", True), ("pytest-forked", False)]) == [
        *("pytest_forked", "xdist")
    ]
    with pytest.raises(SystemExit) as ended:
        benchmark("faults").main(["--methods", "pytest-isolate", "--xdist", "no"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "has no pytest_isolate: `make .venv-bench/installed`" in said.err
    assert said.out == ""


def test_no_number_of_a_benchmark_is_taken_as_it_is_but_a_seed() -> None:
    tools = [PROJECT / "tools" / f"{name}.py" for name in ("foreign_suites", "repeat_under_load")]
    for path in (*BENCHMARKS.glob("*.py"), *(PROJECT / "tests" / "fuzz").glob("*.py"), *tools):
        text = path.read_text(encoding="utf-8")
        unchecked = re.findall(r'"(--[\w-]+)",\s*type=(?:int|float)\b', text)
        assert set(unchecked) <= {"--seed"}, path.name
