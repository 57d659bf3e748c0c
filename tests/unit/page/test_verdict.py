"""What the page says first: never good where something is wrong, nor where it was not seen."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.page.verdict import BAD, GOOD, UNSURE, verdict_of
from tests.support import session_documents as sessions

UNSEEN_MODULE = sessions.module("a", verdict="not observable")
UNSEEN_GRAPHS = {
    "captures": 1,
    "replays": 0,
    "errors": [],
    "suspicions": [],
    "judged": 0,
    "not_judged": {"no rule": 1},
    "silenced": 0,
    "elsewhere": 2,
    "replays_elsewhere": 3,
}


def test_a_session_in_which_all_was_seen_and_nothing_is_wrong_is_good() -> None:
    verdict = verdict_of(sessions.document())
    assert (verdict.state, verdict.words, verdict.wrong, verdict.unseen) == (GOOD, "Good", (), ())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "exit status": ({"good": False, "exit_status": 5}, ""),
    "stopped": ({"stopped": "KeyboardInterrupt"}, "did not come to its end: KeyboardInterrupt"),
    "not written": ({"not_written": ["the JSON file x cannot be written"]}, "the JSON file x"),
    "reason": ({"failed_for": ["2 GPUs expected"]}, "2 GPUs expected"),
    "failed": ({"tests": [sessions.a_test(0, "failed")]}, "1 test: failed"),
    "unfinished": ({"tests": [sessions.a_test(n, "unfinished") for n in (0, 1)]}, "2 tests: unf"),
    "collection": (
        {"collection_errors": [{"node": "a", "message": "", "where": None}]},
        "1 file or folder could not be collected",
    ),
    "finding": ({"check": sessions.check(findings=[sessions.finding()])}, "1 error of the check"),
    "audit": ({"imports": sessions.audit(sessions.module("a", touches=True))}, "import audit"),
    "graph": (
        {"captured_graphs": {**UNSEEN_GRAPHS, "errors": [{"fails": True}]}},
        "1 error in captured graphs",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_said_whatever_the_exit_status_is(kind: str) -> None:
    changed, words = WRONG[kind]
    verdict = verdict_of(sessions.document(**changed))
    assert verdict.state == BAD
    assert verdict.words.startswith("Not good: exit status ")
    assert words in "\n".join(verdict.wrong)


def test_a_test_that_passed_unexpectedly_is_not_why_a_session_fails() -> None:
    """Where ``xfail_strict`` makes it a failure, pytest reports one."""
    tests = [sessions.a_test(0, "xpassed"), sessions.a_test(1, "failed")]
    verdict = verdict_of(sessions.document(tests=tests, good=False, exit_status=1))
    assert verdict.wrong == ("1 test: failed",)


def test_an_exit_status_is_told_in_words_where_it_is_known() -> None:
    words = [
        verdict_of(sessions.document(good=False, exit_status=status)).words for status in (5, 77)
    ]
    assert words == ["Not good: exit status 5, no test ran", "Not good: exit status 77"]


UNSEEN: dict[str, tuple[dict[str, Any], str]] = {
    "no tests": ({"tests": []}, "no test ran"),
    "not observable": ({"not_observable": ["nothing was watched"]}, "nothing was watched"),
    "lost": ({"check": sessions.check(lost=["a record"])}, "a record"),
    "module": (
        {"imports": {**sessions.audit(UNSEEN_MODULE), "good": True}},
        "1 module not observable",
    ),
    "incomplete audit": ({"imports": {**sessions.audit(), "complete": False}}, "not all modules"),
    "audit of a change": (
        {"imports": {**sessions.audit(), "since": {"ref": "main"}}},
        "only what the change since main can reach",
    ),
    "capture": ({"captures": [sessions.capture(verdict="not judged")]}, "1 checked capture could"),
    "graph": ({"captured_graphs": UNSEEN_GRAPHS}, "1 value not judged: no rule"),
    "other threads": ({"captured_graphs": UNSEEN_GRAPHS}, "2 captures of other threads"),
    "replays of other threads": ({"captured_graphs": UNSEEN_GRAPHS}, "3 replays in other threads"),
    "replay": (
        {"replay_audit": {"audited": 1, "cannot_fail": [], "not_judged": [{}]}},
        "replay audit: 1 test not judged",
    ),
    "hook": (
        {"hook_errors": [{"hook": "h", "where": "conftest.py:3", "words": "oops"}]},
        "hook h of conftest.py:3: oops",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_session_of_which_something_was_not_seen_is_not_simply_good(kind: str) -> None:
    changed, words = UNSEEN[kind]
    verdict = verdict_of(sessions.document(**changed))
    assert (verdict.state, verdict.wrong) == (UNSURE, ())
    assert words in "\n".join(verdict.unseen)


def test_what_a_baseline_accepts_and_what_was_expected_to_raise_is_not_wrong() -> None:
    accepted = sessions.check(findings=[sessions.finding(accepted=True)])
    graphs = {**UNSEEN_GRAPHS, "not_judged": {}, "elsewhere": 0, "replays_elsewhere": 0,
              "errors": [{"fails": False}]}  # fmt: skip
    made = sessions.document(check=accepted, captured_graphs=graphs)
    assert verdict_of(made).state == GOOD


def test_what_is_said_twice_in_the_document_is_said_once() -> None:
    check = sessions.check(lost=["a record"], not_observable=["a record"])
    made = sessions.document(check=check, not_observable=["a record"])
    assert verdict_of(made).unseen == ("a record",)
