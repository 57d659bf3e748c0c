"""What is said to the file worker, and what is no command."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.file_worker import commands
from pytest_cudafork.file_worker.commands import Answer, RunFile, Stop


def test_what_can_be_asked_for() -> None:
    assert commands.read(b'{"filename": "a.py"}\n') == RunFile("a.py")
    assert commands.read(b'{"filename": "a.py", "timeout": 2}') == RunFile("a.py", 2.0)
    assert commands.read(b'{"filename": "a.py", "timeout": null}') == RunFile("a.py")
    assert commands.read(b'{"command": "stop"}') == Stop()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("\n", 'an empty line asks for nothing: write {"filename": "test_x.py"}'),
        (" \r\n", "an empty line"),
        ("nonsense", "'nonsense' is no JSON "),
        ("[" * 100_000, "is no JSON"),
        ("\xff", "is no JSON"),
        ('"a.py"', 'no JSON object: write {"filename": "test_x.py"}'),
        ("{}", "names no file"),
        ('{"filename": ""}', "names no file"),
        ('{"filename": 3}', "names no file"),
        (r'{"filename": "a\u0000b"}', "names no file"),
        (r'{"filename": "a\ud800b"}', "names no file"),
        ('{"command": "run"}', "something unknown ('command')"),
        ('{"command": "stop", "filename": "a.py"}', "something unknown ('command')"),
        ('{"filename": "a.py", "env": {}}', "something unknown ('env')"),
        ('{"filename": "a.py", "timeout": 0}', "not a number of seconds above 0"),
        ('{"filename": "a.py", "timeout": true}', "not a number of seconds above 0"),
        ('{"filename": "a.py", "timeout": "2"}', "not a number of seconds above 0"),
        ('{"filename": "a.py", "timeout": Infinity}', "not a number of seconds above 0"),
        ('{"filename": "a.py", "timeout": NaN}', "not a number of seconds above 0"),
    ],
    ids=lambda value: value[:40],
)
def test_nonsense_is_named(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        commands.read(line.encode("latin-1"))
    assert len(str(raised.value)) < 400


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["filename", "command", "timeout", "x"]), JSON) | JSON)
def test_every_line_is_a_command_or_a_value_error(value: Any) -> None:
    try:
        command = commands.read(json.dumps(value).encode())
    except ValueError:
        return
    assert isinstance(command, RunFile | Stop)


@given(st.binary(max_size=20))
def test_whatever_the_bytes_are_the_error_is_one_line(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
        commands.read(b"{" + line)


@given(st.text(), st.integers(0, 255), st.floats(0, 1e6), st.text())
def test_an_answer_is_one_line_that_says_it_all(
    filename: str, code: int, elapsed: float, why: str
) -> None:
    line = Answer(filename, code, elapsed, why).line()
    assert line.index(b"\n") == len(line) - 1
    told = {"filename": filename, "returncode": code, "elapsed": elapsed, "why": why}
    if not why:
        del told["why"]
    assert json.loads(line) == told
