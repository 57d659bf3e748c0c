"""The document of a session keeps to the schema, whatever was asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.findings import find
from pytest_cudafork.report.session_document import check_content, session_document
from pytest_cudafork.report.tests_seen import TestsSeen
from pytest_cudafork.report.trace import Trace
from pytest_cudafork.settings import Level
from tests.support.checked_sessions import TEST, LedgerSession, report
from tests.support.documents import validated


def document(
    check: dict[str, Any] | None = None,
    status: int = 0,
    *tests: Any,
    not_written: tuple[str, ...] = (),
    stopped: str = "",
) -> dict[str, Any]:
    """Return the document of a session, validated."""
    config = SimpleNamespace(
        invocation_params=SimpleNamespace(args=("-q", "tests")), rootpath=Path("/p")
    )
    session: Any = SimpleNamespace(exitstatus=status, config=config)
    seen = TestsSeen()
    for each in tests:
        seen.add(each)
    timeline = Trace().timeline([])
    made = session_document(
        session,
        1.5,
        seen,
        check,
        None,
        timeline=timeline,
        not_written=not_written,
        stopped=stopped,
    )
    return validated({**made, "hook_errors": []}, "session")


def test_a_session_without_the_check_says_that_nothing_was_watched() -> None:
    made = document(None, 0, report("call"))
    assert made["good"] is True
    assert made["check"] is None
    assert made["not_observable"] == ["nothing was watched: --cuda-fork-check is off"]
    assert (made["command"], made["root"]) == (["-q", "tests"], "/p")
    assert made["counts"] == {"passed": 1}


def test_a_session_that_was_stopped_says_why() -> None:
    made = document(None, 2, stopped="stopping after 1 failures")
    assert made["good"] is False
    assert made["exit_status"] == 2
    assert made["stopped"] == "stopping after 1 failures"


@pytest.mark.parametrize(("status", "told"), [(0, 1), (1, 1), (5, 5)])
def test_a_session_that_could_not_write_a_file_is_not_good(status: int, told: int) -> None:
    made = document(None, status, not_written=("the trace file t cannot be written: full",))
    assert (made["good"], made["exit_status"]) == (False, told)
    assert made["not_written"] == ["the trace file t cannot be written: full"]


def test_what_the_check_saw_is_in_it(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    touch = session.touch(3)
    session.fork(5)
    session.ledger.append("process", ppid=1, argv=["python", "x.py"])
    records = session.observer.records()
    found = find(records, Level.TOUCH)
    content = check_content(session.observer, "touch", records, found, {touch}, ["a record"])
    made = document(content, 1)["check"]
    assert made["level"] == "touch"
    assert made["simulated_driver"] is True
    assert [(f["error"], f["accepted"], f["test"]) for f in made["findings"]] == [
        ("CudaTouchError", True, TEST),
        ("CudaForkError", False, TEST),
    ]
    assert [touch["culprit"] for touch in made["touches"]] == [f"{tmp_path}/test_a.py:3"]
    (fork,) = made["forks"]
    assert (fork["verdict"], fork["test"]) == ("guarded", TEST)
    assert list(made["processes"].values()) == ["python x.py"]
    assert made["lost"] == ["a record"]
    assert "a record" in made["not_observable"]
