"""Programs under ``run`` with a real driver: the reported bugs, with the lines of a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sessions.programs.test_seeds import SCRIPTS, SUITE, run
from tests.support.programs import TOUCHES_AND_FORKS, watched

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"if __name__ == '__main__':\n    exec({SCRIPTS[name]!r})\n")
    status, told = run(name, "buggy", tmp_path, "main.py", device="real")
    assert status == 1, told
    status, told = run(name, "fixed", tmp_path, "main.py", device="real")
    assert status == 0, told


def test_a_suite(tmp_path: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    status, told = run(SUITE, "buggy", tmp_path, *words, device="real")
    assert status == 1, told
    status, told = run(SUITE, "fixed", tmp_path, *words, device="real")
    assert status == 0, told


def test_the_driver_itself_is_seen(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(TOUCHES_AND_FORKS)
    done = watched("--report=r", "--json", "prog.py", cwd=tmp_path)
    told = json.loads((tmp_path / "r").read_text())
    assert (done.returncode, told["simulated_driver"]) == (3, False)
    assert [touch["culprit"] for touch in told["touches"]] == [f"{tmp_path}/prog.py:8"] * 2
    assert [touch["poisoned"] for touch in told["touches"]] == [False, True]
