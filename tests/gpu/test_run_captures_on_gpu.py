"""``run --captures`` of a script on a real GPU: the line of its skipped planner is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.specimens.plain_graphs.catalog import CATALOG, form
from tests.support.programs import watched
from tests.support.sessions import needs_torch

pytestmark = [
    needs_torch,
    pytest.mark.gpu,
]
SEED = next(program for program in CATALOG if program.name == "speculator_prefill")


@pytest.mark.parametrize("which", ["buggy", "fixed"])
def test_a_script_is_told_the_line_of_its_skipped_planner(which: str, tmp_path: Path) -> None:
    form(which).copy_to(tmp_path)
    (tmp_path / "main.py").write_text(f"from test_{SEED.name} import serve\nprint(len(serve()))\n")
    options = ("--captures", "--fail", "--report=told.json", "--json")
    done = watched(*options, "main.py", cwd=tmp_path)
    errors = json.loads((tmp_path / "told.json").read_text())["captures"]["errors"]
    named = {where.rpartition("/")[2] for error in errors for _, where in error["lines"]}
    assert bool(named & set(SEED.named_lines)) == (which == "buggy"), done.stderr
    assert done.returncode == (1 if which == "buggy" else 0)
