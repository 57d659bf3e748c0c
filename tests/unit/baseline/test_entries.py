"""The check's baseline: what an entry says, what a session adds and removes."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import KINDS, Accepted, CheckBaseline
from pytest_cudafork.baseline.file import BaselineError

LINE = Culprit("tests/conftest.py", "<module>", "HAS = torch.cuda.is_available()")
TOUCH, FORK = Accepted("touch", LINE), Accepted("fork", LINE)
OTHER = Accepted("touch", Culprit("lib.py", "Engine.start", 'probe("a: b")'))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ENTRIES = st.builds(
    Accepted,
    st.sampled_from(KINDS),
    st.builds(Culprit, TEXT, st.sampled_from(["<module>", "A.f", "<lambda>"]), TEXT),
)

BODY = """\
["lib.py"]
"touch: Engine.start: probe(\\"a: b\\")" = "test_it.py::test_a"

["tests/conftest.py"]
"fork: <module>: HAS = torch.cuda.is_available()" = "test_it.py::test_b"
"touch: <module>: HAS = torch.cuda.is_available()" = "start"
"""
FULL = CheckBaseline({TOUCH: "start", OTHER: "test_it.py::test_a", FORK: "test_it.py::test_b"})


def test_the_file_has_a_table_for_each_file_and_a_line_for_each_statement(tmp_path: Path) -> None:
    path = tmp_path / "base.toml"
    FULL.write(path)
    head, _, body = path.read_text().partition("\n\n")
    assert all(line.startswith("# ") for line in head.split("\n"))
    assert body == BODY
    assert CheckBaseline.read(path, "--update") == FULL


@given(st.dictionaries(ENTRIES, TEXT, max_size=6))
@example({Accepted("touch", Culprit("tests: gpu-skipped", "<module>", "x")): ""})
@example({Accepted("touch", Culprit("./lib.py", "<module>", "x")): ""})
def test_whatever_is_written_reads_back(entries: dict[Accepted, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "base.toml")
        CheckBaseline(entries).write(path)
        assert CheckBaseline.read(path, "--update") == CheckBaseline(entries)
    assert all(Accepted.from_list(entry.to_list()) == entry for entry in entries)


@pytest.mark.parametrize("key", ["vllm.a", "fork: f", "frok: f: x()", "fork", "fork: : x()"])
def test_an_entry_of_another_form_is_told_with_its_line(tmp_path: Path, key: str) -> None:
    path = tmp_path / "base.toml"
    path.write_text(f'# a\n["lib.py"]\n"{key}" = "x"\n')
    with pytest.raises(BaselineError, match=rf"base\.toml:3: '{re.escape(key)}' is no entry"):
        CheckBaseline.read(path, "--update")


def test_a_session_adds_what_it_may_and_removes_what_is_gone() -> None:
    seen = {OTHER: ["test_it.py::test_a", "start"], FORK: ["z.py::t", "collect a.py", "b.py::t"]}
    before = CheckBaseline({TOUCH: "start", OTHER: "test_it.py::test_a"})
    assert before.updated(seen, [TOUCH, OTHER], add=False) == CheckBaseline(
        {OTHER: "test_it.py::test_a"}  # what was seen is not gone, and stays as it was
    )
    after = before.updated(seen, [], add=True)
    assert after.entries == {
        TOUCH: "start",
        OTHER: "test_it.py::test_a",
        FORK: "collect a.py",  # collection comes first
    }
    moved = before.updated({TOUCH: ["b.py::t", "a.py::t"]}, [], add=False)
    assert moved.entries[TOUCH] == "a.py::t"
    assert before.entries[TOUCH] == "start"


@pytest.mark.parametrize("data", [None, [], ["touch", "a", "b"], ["x", "a", "b", "c"], "touch",
                                  ["touch", "a", 2, "c"]])  # fmt: skip
def test_what_is_no_entry_of_a_ledger_is_left_out(data: object) -> None:
    assert Accepted.from_list(data) is None


def test_an_entry_is_told_in_one_line() -> None:
    assert TOUCH.words == "touch: tests/conftest.py: HAS = torch.cuda.is_available()"
    assert OTHER.words == 'touch: lib.py in Engine.start: probe("a: b")'
    assert Accepted("fork", Culprit("a.pyc", "f", "")).words.endswith("whose source is not there")
