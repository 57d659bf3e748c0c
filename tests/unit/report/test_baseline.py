"""What the last section says of the baseline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import Accepted
from pytest_cudafork.check.baseline_result import BaselineResult, Seen
from pytest_cudafork.report.baseline import accepted_words, gone_lines, seen_lines, write_baseline
from pytest_cudafork.settings.options import Settings
from tests.unit.report.test_terminal import Terminal

LINE = Culprit("lib.py", "f", "probe()")
TOUCH, FORK = Accepted("touch", LINE), Accepted("fork", LINE)
BOTH = (Seen(TOUCH, ["start"], 2), Seen(FORK, ["a.py::t", "b.py::t", "c.py::t"], 1))


def section(verbosity: int = 0, update: str = "", **about: Any) -> Terminal:
    """Write the lines of a session."""
    terminal: Any = Terminal()
    terminal.verbosity = verbosity
    about = {"result": BaselineResult(BOTH), "gone": (), "written": "", "failure": "", **about}
    settings = Settings(baseline="/repo/known.toml", baseline_update=update)
    hooks: Any = SimpleNamespace(**about)
    write_baseline(terminal, settings, "/repo", hooks)
    made: Terminal = terminal
    return made


def test_what_was_accepted_is_one_line_and_verbosely_one_for_each_culprit() -> None:
    line = "baseline known.toml: accepted 2 touches, 1 fork, because of 1 line"
    assert section().lines == [(line, frozenset({"yellow"}))]
    assert section(1).text.split("\n")[1:] == [
        "  touch: lib.py in f: probe() (2 times: start)",
        "  fork: lib.py in f: probe() (1 time: a.py::t and in 2 more places)",
    ]
    assert accepted_words(BaselineResult()) == "nothing of it was seen"
    assert list(seen_lines(())) == []


def test_what_is_gone_is_named_with_what_to_do() -> None:
    result = BaselineResult(missing=(TOUCH,), quiet=(TOUCH, FORK))
    text = section(result=result, gone=(TOUCH, FORK)).text
    assert "gone from the tests (its text is not there any more): touch: lib.py in f" in text
    assert "gone from the tests (it was not seen any more): fork: lib.py in f: probe()" in text
    assert "remove them from known.toml by --cuda-fork-baseline-update=shrink" in text
    written = section(result=result, gone=(TOUCH, FORK), written="0 now").text
    assert "gone" not in written
    assert "baseline known.toml written: 0 now" in written


def test_many_that_are_gone_are_counted() -> None:
    many = [Accepted("touch", Culprit("a.py", "f", str(n))) for n in range(30)]
    lines = list(gone_lines(many, BaselineResult()))
    assert lines[-1] == "... and 10 more (-v shows all)"
    assert len(list(gone_lines(many, BaselineResult(), verbose=True))) == 30


def test_what_could_not_be_done_is_red() -> None:
    made = section(update="all", result=BaselineResult(unknown=2), failure="it is read-only")
    assert ("ERROR: it is read-only", frozenset({"red"})) in made.lines
    assert "2 errors cannot be accepted: nobody saw the line" in made.text
