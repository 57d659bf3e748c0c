"""Numbers on the command lines of benchmarks: one that makes no sense is told, not run with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.repo.conftest import BENCHMARKS


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


def test_no_number_of_a_benchmark_is_taken_as_it_is_but_a_seed() -> None:
    for path in BENCHMARKS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        unchecked = re.findall(r'"(--[\w-]+)",\s*type=(?:int|float)\b', text)
        assert set(unchecked) <= {"--seed"}, path.name
