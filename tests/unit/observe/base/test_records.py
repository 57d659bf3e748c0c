"""Lines of the ledger: what is no record of the right form is none, whatever it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.check.findings import find, tell
from pytest_cudafork.observe.base.records import decode, file_of_stderr
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.report.places import import_lines
from pytest_cudafork.report.terminal import Counts
from pytest_cudafork.settings import Level

TOUCH: dict[str, Any] = {
    "k": "touch", "id": "6-2", "t": 3, "pid": 6, "tid": 5, "owner": "6", "test": "", "phase": "",
    "entry": "cuInit", "library": "", "libraries": ["a"], "poisoned": False, "again": True,
    "stack": [["a.py", 1, "f", 3], ["b.py", None, "g"]], "gil": "held", "result": None, "other": {},
}  # fmt: skip


def test_a_record_reads_back() -> None:
    assert decode(json.dumps(TOUCH).encode()) == TOUCH


HOSTILE = (
    b"", b"[]", b"7", b"{}", b'{"k": "touch"}', b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe",
    b'{"k": "touch", "pid": NaN}', b'{"k": "touch", "pid": 1, "t": Infinity}',
    b'{"k": "touch", "pid": 1e400}', b'{"k": "touch", "pid": 1' + b"0" * 5000 + b"}",
    b'{"k": "touch", "pid": 1' + b"0" * 30 + b"}",
    b'{"k": "touch", "pid": 1, "a": "' + b"x" * (1 << 23) + b'"}',
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_is_no_record(line: bytes) -> None:
    assert decode(line) is None


WRONG: tuple[tuple[str, object], ...] = (
    ("k", 1), ("pid", "1"), ("pid", True), ("pid", None), ("pid", 1.5), ("pid", [1]), ("t", "now"),
    ("owner", 5), ("test", None), ("phase", ["collect"]), ("id", {}), ("poisoned", "yes"),
    ("again", 0), ("stack", 5), ("stack", "text"), ("stack", [[]]), ("stack", [["a.py", "1", "f"]]),
    ("stack", [["a.py", 1, None]]), ("stack", [["a.py", 1, "f", "3"]]), ("stack", [{"a": 1}]),
    ("libraries", "a"), ("ids", [1]), ("ids", "a"), ("limits", 3), ("parent", "1"), ("fork", 1),
)  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
def test_a_value_of_a_wrong_type_makes_it_no_record(key: str, value: object) -> None:
    assert decode(json.dumps({**TOUCH, key: value}).encode()) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
KEYS = st.sampled_from([*TOUCH, "ids", "parent", "fork", "verdict", "rule", "state", "api"])
KINDS = st.sampled_from(["touch", "fork", "child", "reported", "watch", "process"])


@pytest.mark.slow
@given(KINDS, st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_whatever_is_read_can_be_told(kind: str, changes: dict[str, object]) -> None:
    record = decode(json.dumps({**TOUCH, **changes, "k": kind}).encode())
    if record is None:
        return
    records = [record]
    import_lines(History(records))
    assert Counts.of(records).line()
    found = find(records, Level.TOUCH)
    if found:
        told = tell(found, History(records), simulated=True, told={})
        assert [line for line in told.split("\n") if plain(line) != line] == []


def test_control_sequences_do_not_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = "\x1b]0;title\x07\x1b[2J\r\u202e\udcff"
    source = tmp_path / "evil\x1b[31m.py"
    source.write_text(f"line = 1  # {evil[:6]}\n")
    texts = dict.fromkeys(("entry", "test", "phase", "library", "api", "state"), evil)
    for kind in ("touch", "fork"):
        stack = [[str(source), 1, evil, 3]]
        line = json.dumps({**TOUCH, "k": kind, **texts, "stack": stack, "verdict": "guarded"})
        record = decode(line.encode())
        assert record is not None
        told = tell(find([record], Level.TOUCH), History([record]), simulated=True, told={})
        assert [line for line in told.split("\n") if not line.isprintable()] == []
        assert "\\x1b[31m.py:1" in told
        assert "line = 1  # \\x1b]0;ti" in told


@pytest.mark.parametrize("name", ["/dev/zero", "FIFO"])
def test_a_source_that_is_no_plain_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "FIFO")
    path = str(tmp_path / name)
    stack = [[path, 3, "Body", -1], [path, 4, "<module>", 0], ["<frozen importlib._b>", 1, "f"]]
    record = decode(json.dumps({**TOUCH, "pid": 6, "stack": stack}).encode())
    assert record is not None
    assert f"{name}:4" in tell(
        find([record], Level.TOUCH), History([record]), simulated=True, told={}
    )


def test_a_file_behind_stderr_has_a_name_that_no_other_has(tmp_path: Path) -> None:
    kept, names = os.dup(2), []
    try:
        for file in ("a", "b", "a"):
            fd = os.open(tmp_path / file, os.O_WRONLY | os.O_CREAT)
            os.dup2(fd, 2)
            os.close(fd)
            names.append(file_of_stderr())
        os.close(2)
        assert file_of_stderr() == ""
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert names[0] == names[2] != names[1]
