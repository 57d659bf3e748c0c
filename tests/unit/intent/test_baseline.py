"""The tables about tests in the baseline: read, changed, and beside those about lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import Accepted, CheckBaseline
from pytest_cudafork.baseline.file import BaselineError
from pytest_cudafork.intent.baseline import read_known, update
from pytest_cudafork.intent.kinds import Slip

LINE = {Accepted("fork", Culprit("lib.py", "f", "probe()")): "start"}
A, B = ("spawned", "a.py::test_a"), ("gpu-skipped", "b.py::test_b")


def test_tests_are_added_and_removed_beside_lines(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    assert read_known(str(path), may_be_missing=True) == {}
    written = update(str(path), [Slip(*A, "threads"), Slip(*B, "no CUDA")], (), add=True)
    assert written == "2 tests now, 2 added, 0 removed"
    both = CheckBaseline.read(path, "").updated({next(iter(LINE)): ["start"]}, (), add=True)
    both.write(path)
    assert read_known(str(path), may_be_missing=False) == {A: "threads", B: "no CUDA"}
    update(str(path), [Slip("spawned", "new.py::t", "x")], [B], add=False)
    assert read_known(str(path), may_be_missing=False) == {A: "threads"}
    assert CheckBaseline.read(path, "").entries == LINE
    assert '["tests: spawned"]\n"a.py::test_a" = "threads"\n' in path.read_text()


def test_a_file_that_is_missing_or_knows_other_tests_is_told(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    with pytest.raises(BaselineError, match="no such baseline"):
        read_known(str(path), may_be_missing=False)
    path.write_text('["tests: slow"]\n"a.py::test_a" = "x"\n')
    with pytest.raises(BaselineError, match="there is no table 'tests: slow': there are tests: sp"):
        read_known(str(path), may_be_missing=False)
