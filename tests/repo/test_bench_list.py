"""The list of the benchmarks: the same as in the docs, and there at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.repo.sources import PROJECT


def test_the_list_says_of_each_part_what_the_table_of_the_docs_says(
    benchmark: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    listed = []
    for options in (["--list"], ["--list", "--gpu"]):
        assert benchmark("bench_all").main(options) == 0
        listed += table_rows(capsys.readouterr().out)
    page = (PROJECT / "docs" / "explanation" / "measured.md").read_text(encoding="utf-8")
    _, _, of_parts = page.partition("tools/draw_records.py: parts -->")
    (header, *rows), again = table_rows(of_parts), listed.index(listed[0], 1)
    assert listed[0] == listed[again] == header
    assert listed[1:again] + listed[again + 1 :] == rows


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of the lines of a table, but for the rule and marks of code."""
    lines = [line.replace("`", "") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in cells if not all(set(cell) <= set("-:") for cell in row)]


@pytest.mark.parametrize("target", ["bench", "bench-gpu"])
@pytest.mark.parametrize("there", [False, True], ids=["no environment", "an environment"])
def test_the_list_is_shown_by_any_python_and_no_environment_is_made(
    tmp_path: Path, target: str, there: bool
) -> None:
    venv, bench_venv = tmp_path / "venv", tmp_path / "bench"
    python, none = tmp_path / "python", tmp_path / "none"
    if there:
        python, none = venv / "bin" / "python", python
        python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -E -s -S "$@"\n')  # without packages
    python.chmod(0o755)
    before = set(tmp_path.rglob("*"))
    done = subprocess.run(
        [
            *("make", target, "BENCHARGS=--list", f"VENV={venv}", f"BENCH_VENV={bench_venv}"),
            f"PYTHON={none if there else python}",
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| part ")
    assert set(tmp_path.rglob("*")) == before
