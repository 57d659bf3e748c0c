"""What the baseline accepts in a process that knows it from the ledger."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.baseline.culprit import Culprit
from pytest_cudafork.baseline.entries import KINDS, Accepted
from pytest_cudafork.check.accepted import (
    Acceptance,
    Terms,
    accepted_records,
    kind_of,
    known_as,
    terms_in,
)
from pytest_cudafork.check.findings import Finding
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.observe.story.touch import Touch


class Notes:
    """A ledger as the observer writes it."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(str(path))
        self.ledger.create()

    def records(self) -> list[dict[str, Any]]:
        """Return everything so far."""
        return self.ledger.reader().new()

    def history(self) -> History:
        """Return the same as stories use it."""
        return History(self.records())

    def note_baseline(self, **fields: object) -> None:
        """Write what is accepted."""
        self.ledger.append("baseline", **fields)

    def note_accepted(self, ids: list[str], what: list[str]) -> None:
        """Write what was accepted."""
        self.ledger.append("accepted", ids=ids, what=what)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """An empty ledger."""
    return Notes(tmp_path / "ledger")


def touch_at(line: int = 2, **fields: Any) -> dict[str, Any]:
    """Return the record of a touch in a file that is not there."""
    stack = [["/repo/lib.py", line, "f", 3]] if line else []
    return {"k": "touch", "id": f"t{line}", "pid": os.getpid(), "t": 1, "stack": stack, **fields}


LINE = Culprit("lib.py", "f", "")
"""What a touch of ``touch_at`` is known by."""


def test_what_is_accepted_is_left_out_and_noted_and_the_rest_stays(notes: Notes) -> None:
    acceptance = Acceptance(notes)
    acceptance.begin(Terms("/repo", {Accepted("touch", LINE): "start"}))
    known = Finding(touch_at(), CudaTouchError)
    unseen = Finding(touch_at(0), CudaTouchError)  # it could be any line
    poisoned = Finding(touch_at(3, poisoned=True), PoisonedTouchError)
    left = Acceptance(notes).left([known, unseen, poisoned])
    assert left == [unseen, poisoned]
    assert list(accepted_records(notes.records())) == [("t2", Accepted("touch", LINE))]


def test_while_the_baseline_is_written_all_with_a_culprit_is_accepted(notes: Notes) -> None:
    Acceptance(notes).begin(Terms("/repo", {}, everything=True))
    acceptance = Acceptance(notes)
    assert acceptance.terms == Terms("/repo", {}, everything=True)
    findings = [Finding(touch_at(line), CudaTouchError) for line in (2, 0)]
    # All that is run by exec has this name.
    made = Finding(touch_at(4, stack=[["<string>", 2, "f", 3]]), CudaTouchError)
    assert acceptance.left([*findings, made]) == [findings[1], made]


@pytest.mark.parametrize("everything", [True, False], ids=["update", "use"])
@pytest.mark.parametrize("stack", [[], [["<string>", 2, "f", 3]]], ids=["none", "made"])
def test_an_error_for_which_nobody_saw_the_line_is_never_accepted(
    notes: Notes, everything: bool, stack: list[list[Any]]
) -> None:
    child, line = os.getpid() + 1, [["/repo/lib.py", 2, "f", 3]]
    others = [LINE, Culprit("<string>", "f", ""), Culprit("", "", "")]
    entries = {Accepted(kind, each): "start" for kind in KINDS for each in others}
    terms = Terms("/repo", entries, everything=everything)
    Acceptance(notes).begin(terms)
    acceptance = Acceptance(notes)
    assert acceptance.terms == terms
    assert acceptance.of_fork() == ""  # nothing is known of this process
    touch = {"k": "touch", "id": "t", "pid": os.getpid(), "t": 1, "stack": stack}
    fork = {"k": "fork", "id": "f", "pid": os.getpid(), "t": 2, "verdict": "unguarded"}
    fork["stack"] = line
    made = {"k": "child", "id": "c", "pid": child, "t": 3, "parent": os.getpid(), "fork": "f"}
    late = {"k": "touch", "id": "l", "pid": child, "t": 4, "poisoned": True, "stack": line}
    for record in (touch, fork, made, late):
        notes.ledger.append(str(record["k"]), **record)
    history = notes.history()
    findings = [
        Finding(touch, CudaTouchError),
        Finding(fork, CudaForkError),
        Finding(late, PoisonedTouchError),
    ]
    causes = [each.cause(history) for each in findings]
    assert [cause.id for cause in causes if cause is not None] == ["t", "t", "t"]
    assert acceptance.left(findings) == findings
    assert acceptance.of_fork() == ""
    assert list(accepted_records(notes.records())) == []


def test_without_a_baseline_nothing_is_accepted(notes: Notes) -> None:
    acceptance = Acceptance(notes)
    findings = [Finding(touch_at(), CudaTouchError)]
    assert acceptance.left(findings) == findings
    assert acceptance.of_fork() == ""
    assert [record["k"] for record in notes.records()] == []


def test_a_fork_is_accepted_by_what_initialized_its_process(notes: Notes) -> None:
    Acceptance(notes).begin(Terms("/repo", {Accepted("fork", LINE): "start"}))
    acceptance = Acceptance(notes)
    assert acceptance.of_fork() == ""  # nobody knows what initialized it
    notes.ledger.append("touch", stack=[["/repo/lib.py", 9, "f", 3]])
    assert acceptance.of_fork() == (
        "in the baseline: fork: lib.py in f: a line whose source is not there"
    )
    notes.ledger.append("touch", stack=[["/repo/lib.py", 9, "g", 3]])
    assert acceptance.of_fork() != ""  # the first touch counts


def test_a_fork_past_the_guard_goes_by_its_process_too(notes: Notes) -> None:
    acceptance = Acceptance(notes)
    acceptance.begin(Terms("/repo", {Accepted("fork", LINE): "start"}))
    notes.ledger.append("touch", **touch_at())
    fork = {"k": "fork", "id": "f", "pid": os.getpid(), "verdict": "unguarded", "stack": []}
    assert acceptance.left([Finding(fork, CudaForkError)]) == []
    other = {**fork, "pid": 1}
    assert acceptance.left([Finding(other, CudaForkError)]) != []


def test_a_thread_that_asks_while_another_reads_is_not_told_that_nothing_is_accepted(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = Terms("/repo", {Accepted("fork", LINE): "start"})
    Acceptance(notes).begin(terms)
    acceptance, read, answers = Acceptance(notes), notes.records, []

    def ask_elsewhere() -> list[dict[str, Any]]:
        monkeypatch.setattr(notes, "records", read)
        other = threading.Thread(target=lambda: answers.append(acceptance.terms))
        other.start()
        other.join()
        return read()

    monkeypatch.setattr(notes, "records", ask_elsewhere)
    answers.append(acceptance.terms)
    assert answers == [terms, terms]


def test_many_entries_are_several_records(notes: Notes) -> None:
    entries = {Accepted("touch", Culprit("a.py", "f", str(n))): "start" for n in range(2500)}
    Acceptance(notes).begin(Terms("/repo", entries))
    assert len(notes.records()) == 3
    assert Acceptance(notes).terms == Terms("/repo", entries)


def test_what_another_process_scribbled_is_left_out(notes: Notes) -> None:
    for entries in (None, 3, [None, [], ["touch"], ["touch", "a", "b", "c", "at"]]):
        notes.note_baseline(root="/repo", everything="yes", entries=entries)
    notes.ledger.append("accepted", ids=["x"], what=["nothing"])
    found = Accepted("touch", Culprit("a", "b", "c"))
    assert terms_in(notes.records()) == Terms("/repo", {found: "at"})
    assert list(accepted_records(notes.records())) == []


def test_errors_are_accepted_as_what_they_are() -> None:
    kinds = [kind_of(Finding({}, error)) for error in
             (CudaTouchError, CudaForkError, PoisonedTouchError)]  # fmt: skip
    assert kinds == ["touch", "fork", "poisoned"]
    assert known_as("touch", None, "/repo") is None
    assert known_as("touch", Touch.from_record(touch_at()), "/repo") == Accepted("touch", LINE)
