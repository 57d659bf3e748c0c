"""The last section: its numbers, its stories, what it could not see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.findings import Finding, reported_ids
from pytest_cudafork.errors import CudaForkError, CudaTouchError
from pytest_cudafork.report.terminal import Counts, write_summary
from pytest_cudafork.settings.options import Settings


def _touch(test: str = "", phase: str = "", poisoned: bool = False) -> dict[str, Any]:
    return {"k": "touch", "test": test, "phase": phase, "poisoned": poisoned}


def test_counts_sort_touches_by_phase_and_forks_by_verdict() -> None:
    records: list[dict[str, Any]] = [
        _touch(phase="start"),
        _touch(phase="collect a.py"),
        _touch(phase="collect b.py"),
        _touch(test="a.py::test_a (call)", phase=""),
        _touch(test="a.py::test_a (call)", poisoned=True),
        *(
            {"k": "fork", "verdict": v}
            for v in ("guarded", "allowed", "watched", "unknown", "unguarded")
        ),
        {"k": "child"},
    ]
    found = Counts.of(records)
    assert found == Counts(5, 1, 2, 2, guarded=1, allowed=2, poisoned=1, unguarded=1)
    assert "forks guarded: 1, forks past the guard: 1, forks allowed" in found.line()
    assert "touches: 5 (1 at start-up, 2 at import or collection, 2 in tests)" in found.line()
    assert "2 in tests, 1 outside of tests)" in Counts.of([*records, _touch()]).line()
    assert Counts.of([]).line().startswith("touches: 0, forks guarded: 0,")


class Terminal:
    """Stands in for pytest's reporter: the lines, each with its colors."""

    def __init__(self, verbosity: int = 0, tb: str = "auto", *, no_summary: bool = False) -> None:
        self.verbosity = verbosity
        option = SimpleNamespace(tbstyle=tb, no_summary=no_summary)
        self.config = SimpleNamespace(option=option)
        self.lines: list[tuple[str, frozenset[str]]] = []

    def ensure_newline(self) -> None:
        """Begin a line: there is no other."""

    def section(self, title: str, **markup: bool) -> None:
        """Note the title."""
        self.write_line(f"== {title}", **markup)

    def write_line(self, line: str, **markup: bool) -> None:
        """Note a line and its colors."""
        self.lines.append((line, frozenset(name for name, on in markup.items() if on)))

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line for line, _ in self.lines)


def section(
    records: list[dict[str, Any]],
    *,
    unreported: tuple[Finding, ...] = (),
    unseen: tuple[str, ...] = (),
    lost: tuple[str, ...] = (),
    ledger: str = "",
    verbosity: int = 0,
    tb: str = "auto",
    no_summary: bool = False,
) -> Terminal:
    """Write the section of a session with this ledger."""
    terminal: Any = Terminal(verbosity, tb, no_summary=no_summary)
    settings = SimpleNamespace(ledger="/tmp/ledger")
    observer: Any = SimpleNamespace(
        records=lambda: records,
        witnesses=None,
        early=False,
        untold_touches=lambda records: unseen,
        settings=settings,
        simulated=False,
    )
    check: Any = SimpleNamespace(
        unreported=lambda records: list(unreported), lost=lambda records: lost, summarized=set()
    )
    write_summary(terminal, Settings(ledger=ledger), observer, check)
    made: Terminal = terminal
    return made


TOUCH: dict[str, Any] = {
    "k": "touch", "id": "1-1", "t": 1, "pid": 1, "entry": "cuInit", "phase": "collect test_it.py",
    "stack": [["/src/engine.py", 3, "probe", 3]],
}  # fmt: skip


def test_nothing_that_was_seen_is_green() -> None:
    lines = section([]).lines
    assert lines[0] == ("== CUDA and fork", frozenset({"green"}))
    assert lines[1][0] == "no touch of CUDA was seen"
    assert "green" in lines[-1][1]


def test_what_could_not_be_seen_is_yellow_and_not_called_clean() -> None:
    made = section([], unseen=("something",))
    assert ("not observable: something", frozenset({"yellow"})) in made.lines
    assert "no touch of CUDA was seen" not in made.text
    assert "yellow" in made.lines[-1][1]


def test_a_loss_is_red_and_says_what_to_do() -> None:
    made = section([], lost=("a record is gone",), unseen=("something",))
    assert ("ERROR: a record is gone", frozenset({"red"})) in made.lines
    assert "/tmp/ledger" in made.text
    assert "name another file by --cuda-fork-ledger" in made.text
    assert "no touch of CUDA was seen" not in made.text
    assert "red" in made.lines[0][1] & made.lines[-1][1]


def test_a_touch_at_collection_is_told_with_advice() -> None:
    text = section([TOUCH]).text
    assert "touched before any test:\n  /src/engine.py:3: in probe" in text
    assert "what to do:" in text
    assert "no touch" not in text


def test_where_failures_show_nothing_the_section_tells_the_line_in_full() -> None:
    guarded = {"k": "fork", "id": "1-2", "t": 2, "pid": 1, "verdict": "guarded", "api": "os.fork"}
    reported = {"k": "reported", "id": "1-3", "pid": 1, "ids": ["1-2"]}
    records = [TOUCH, guarded, reported]
    assert reported_ids(records) == {"1-2"}
    assert "(told above)" in section(records).text
    assert "what to do:" not in section(records).text
    for told in (section(records, tb="no").text, section(records, no_summary=True).text):
        assert "(told above)" not in told
        assert "what to do:" in told


def test_an_error_that_failed_no_test_is_told_in_red() -> None:
    found = Finding({**TOUCH, "test": "test_it.py::test_a (call)"}, CudaTouchError)
    made = section([TOUCH], unreported=(found,))
    assert made.lines[0][1] == {"red", "bold"}
    assert ("ERROR: test_it.py::test_a, too late to fail a test:", frozenset({"red"})) in made.lines
    assert "red" in made.lines[-1][1]
    outside = section([TOUCH], unreported=(Finding({**TOUCH, "phase": ""}, CudaTouchError),))
    assert "ERROR: outside any test, too late" in outside.text


def test_what_the_baseline_accepts_is_neither_red_nor_green() -> None:
    poisoned = {**TOUCH, "poisoned": True}
    entry = ["poisoned", "engine.py", "probe", "cuInit()"]
    taken = {"k": "accepted", "id": "1-3", "pid": 1, "ids": ["1-1"], "what": entry}
    made = section([poisoned, taken])
    assert made.lines[0][1] == {"yellow"}
    assert "yellow" in made.lines[-1][1]
    assert section([poisoned]).lines[0][1] == {"red", "bold"}
    assert section([{**FORK, "verdict": "accepted"}]).lines[0][1] == {"yellow"}


def test_a_ledger_that_was_asked_for_is_named() -> None:
    assert "ledger: /tmp/ledger" in section([], ledger="/tmp/ledger").text
    assert "ledger:" not in section([], ledger="").text


FORK: dict[str, Any] = {
    "k": "fork", "id": "1-2", "t": 2, "pid": 1, "verdict": "guarded",
    "stack": [["/src/launch.py", 9, "start", 3]],
}  # fmt: skip


def test_a_section_is_red_where_something_failed_a_test() -> None:
    made = section([TOUCH, {"k": "reported", "pid": 1, "ids": ["1-1"]}])
    assert made.lines[0][1] == {"red", "bold"}
    assert "red" in made.lines[-1][1]
    assert "what to do:" not in made.text, "the failure has said it"


def test_a_refusal_that_was_expected_is_no_error() -> None:
    caught = {"k": "caught", "pid": 1, "fork": "1-2", "by_name": True}
    made = section([TOUCH, FORK, caught])
    assert made.lines[0][1] == {"green"}
    line = "1 fork refused because of /src/engine.py:3 (in probe), all expected"
    assert (line, frozenset[str]()) in made.lines


def test_errors_of_one_culprit_are_told_in_full_once() -> None:
    found = [Finding({**FORK, "id": str(n)}, CudaForkError) for n in range(40)]
    records = [{**TOUCH, "test": "test_a (call)"}, *(each.record for each in found)]
    made = section(records, unreported=tuple(found))
    assert made.text.count("what to do:") == 1
    assert made.text.count("as above: told in full at the first error here") == 39
    line = "40 forks refused because of /src/engine.py:3 (in probe)"
    assert (line, frozenset({"red"})) in made.lines


def test_with_q_a_session_in_order_says_nothing_and_any_other_says_it_all() -> None:
    assert section([], verbosity=-1).lines == []
    assert section([], verbosity=-1, ledger="/tmp/ledger").lines, "it was asked for"
    for told in (
        section([], verbosity=-1, unseen=("a library was not seen",)),
        section([], verbosity=-1, lost=("a record is lost",)),
        section([_touch(phase="start") | {"id": "1", "pid": 1}], verbosity=-1),
    ):
        assert told.lines[0][0].startswith("== CUDA and fork")


def test_a_long_story_is_one_group_in_the_log_of_a_ci_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    records = [
        _touch(test=f"a.py::test_{n} (call)")
        | {"id": str(n), "pid": 1, "owner": "1", "stack": [[f"/p/{n}.py", n, "f", 3]]}
        for n in range(1, 40)
    ]
    lines = [line for line, _ in section(records, verbosity=1).lines]
    begin, end = lines.index("::group::CUDA and fork: what was seen"), lines.index("::endgroup::")
    assert end - begin > 39
    assert "touches: 39" in lines[-1], "the numbers are outside"
    assert not any("group" in line for line, _ in section(records[:3]).lines), "a short one is none"
