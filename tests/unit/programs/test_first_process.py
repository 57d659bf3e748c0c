"""Whether a program is a Python, by the files that are executed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_cudafork.programs.first_process import is_python


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a folder with programs."""
    lines = {
        "python-tool": f"#!{sys.executable}\n",
        "env-tool": "#!/usr/bin/env -S A=1 python3 -X dev\n",
        "sh-tool": "#! /bin/sh\npython x.py\n",
        "twice": f"#!{tmp_path}/python-tool\n",
        "round": f"#!{tmp_path}/round\n",
        "empty": "",
        "alone": "#!\n",
        "elf": "\x7fELF",
    }
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize("word", ["python-tool", "env-tool", "twice", "python3.14t", "/x/pypy3"])
def test_a_python_is_known_by_its_name_or_first_line(word: str, env: dict[str, str]) -> None:
    assert is_python(word, env)


@pytest.mark.parametrize(
    "word", ["sh-tool", "round", "empty", "alone", "elf", "none", "/", "pythonic"]
)
def test_what_else_is_executed_is_none(word: str, env: dict[str, str]) -> None:
    assert not is_python(word, env)
    assert not is_python(word, {})


def test_a_file_that_may_not_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_python("./no/such/file", {})
    assert not is_python("/proc/self/mem", {})
