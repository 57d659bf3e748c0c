"""The problems of a session: one for each line, at a line of the project where there is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_cudafork.capture.in_tests.gathered import Gathered
from pytest_cudafork.check.findings import find
from pytest_cudafork.documents.problem import Place, Problem
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.report import session_problems
from pytest_cudafork.settings import Level
from tests.support.checked_sessions import TEST, LedgerSession


def problems(session: LedgerSession, level: Level, *accepted: str) -> list[Problem]:
    """Return the problems of what is in a ledger, those with these ids accepted."""
    records = session.observer.records()
    return session_problems.problems_of_findings(
        [*find(records, level), *session_problems.accepted_forks(records)],
        History(records),
        accepted,
        root=str(session.root),
        simulated=True,
    )


def test_a_refused_fork_is_shown_at_the_line_that_initialized_cuda(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    session.touch(3)
    session.fork(5)
    session.fork(5)
    (problem,) = problems(session, Level.FORK)
    assert problem.rule == "fork-while-initialized"
    assert (problem.level, problem.accepted, problem.test) == ("error", "", TEST)
    assert problem.place == Place(str(tmp_path / "test_a.py"), 3)
    assert [(place.line, words) for place, words in problem.steps] == [
        (3, "cuInit initializes CUDA"),
        (5, "forks"),
    ]
    assert problem.message == problem.story.split("\n")[0]


def test_a_fork_whose_touch_nobody_saw_is_shown_where_it_forks(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    session.fork(5)
    (problem,) = problems(session, Level.FORK)
    assert problem.place == Place(str(tmp_path / "test_a.py"), 5)


def test_touches_have_their_own_rules(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    session.touch(3)
    session.touch(9, pid=1, poisoned=True)
    found = problems(session, Level.TOUCH)
    assert [each.rule for each in found] == ["touch", "poisoned-touch"]


def test_what_the_baseline_holds_is_a_note(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    touch = session.touch(3)
    fork = session.fork(5, verdict="accepted")
    for each in problems(session, Level.TOUCH, touch, fork):
        assert each.level == "note"
        assert each.accepted == "in the baseline of the check"


def test_touches_at_import_are_notes_unless_an_error_tells_their_line(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    machinery = ["<frozen importlib._bootstrap>", 1, "_call_with_frames_removed", 3]
    for line in (2, 2, 7):
        stack = [[str(tmp_path / "flags.py"), line, "<module>", 0], machinery]
        session.touch(test="", phase="collect test_a.py", stack=stack)
    history = History(session.observer.records())
    notes = session_problems.import_notes(history, [], str(tmp_path))
    assert [each.place and each.place.line for each in notes] == [2, 7]
    assert {each.level for each in notes} == {"note"}
    assert session_problems.import_notes(history, notes[:1], str(tmp_path)) == notes[1:]
    assert session_problems.import_notes(history, [], "/elsewhere") == []


def test_findings_of_captures_are_shown_at_their_line(tmp_path: Path) -> None:
    where = str(tmp_path / "model.py")
    found = {
        "check": "replay-differs",
        "what": "2 of 4 differ",
        "path": "outputs[0]",
        "where": f"{where}:12",
        "why": "the buffer moved",
        "todo": "",
    }
    unknown = {**found, "check": "not-judged", "path": "", "where": "/usr/lib/x.py:3"}
    captures: list[dict[str, Any]] = [
        {"test": TEST, "verdict": "failed", "findings": [found]},
        {"test": TEST, "verdict": "not judged", "findings": [unknown]},
        {"test": TEST, "verdict": "passed", "findings": []},
    ]
    first, second = session_problems.problems_of_captures(captures, str(tmp_path))
    assert first.place == Place(where, 12)
    assert first.message == "[replay-differs] outputs[0]: 2 of 4 differ"
    assert first.story.endswith("\nthe buffer moved")
    assert (first.level, second.level, second.place) == ("error", "warning", None)


def test_findings_of_captures_that_tests_make_are_shown_with_their_lines(tmp_path: Path) -> None:
    own, other = str(tmp_path / "plan.py"), "/usr/lib/python3/torch.py"
    found = {
        "kind": "stale-data",
        "what": "element 0 is 1",
        "lines": [["read at", f"{other}:3"], ["computed at", f"{own}:12"], ["changed at", ""]],
        "why": "a replay repeats",
        "todo": "compute it anew",
    }
    graphs = Gathered()
    for test, failed, raised in (("t::a", True, False), ("t::b", False, True)):
        lines = found["lines"] if failed else [["captured at", f"{own}:1"]]
        told = {"errors": [{**found, "lines": lines, "raised": raised}], "suspicions": [found]}
        named = SimpleNamespace(nodeid=test, failed=failed, cudafork_captures=told)
        graphs.add(named)
    error, suspicion = session_problems.problems_of_graphs(graphs, str(tmp_path))
    assert (error.level, suspicion.level) == ("error", "warning")
    assert (error.rule, error.test) == ("graph-capture", "t::a")
    assert error.place == Place(own, 12)
    assert error.steps == ((Place(other, 3), "read at"), (Place(own, 12), "computed at"))
    assert error.message == "[stale-data] element 0 is 1"
    assert "a replay repeats" in error.story
    assert "what to do: compute it anew" in error.story


def test_what_was_not_seen_is_a_warning() -> None:
    (problem,) = session_problems.unseen_problems(["the disk was full"])
    assert (problem.rule, problem.level) == ("not-observable", "warning")
    assert problem.message == "not observable: the disk was full"
