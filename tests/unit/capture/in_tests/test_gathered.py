"""What reports say of captures, gathered: each finding once, with its tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_cudafork.capture.in_tests.gathered import Gathered
from pytest_cudafork.capture.interface.check_names import LOOKED_AT


def finding(where: str, **more: object) -> dict[str, Any]:
    return {"kind": "stale-data", "what": "old", "lines": [["computed at", where]],
            "why": "", "todo": "", **more}  # fmt: skip


def report(test: str, told: object, *, failed: bool = False) -> Any:
    return SimpleNamespace(nodeid=test, failed=failed, **{LOOKED_AT: told})


def test_a_finding_of_several_tests_is_one_with_their_names() -> None:
    gathered = Gathered()
    for test in ("t::a", "t::b", "t::a"):
        error = finding("a.py:1", raised=False)
        told = {"errors": [error], "suspicions": [finding("a.py:2")], "captures": 1, "replays": 2,
                "judged": 4, "not_judged": {"gone": 1}, "silenced": 1,
                "replays_elsewhere": 1}  # fmt: skip
        gathered.add(report(test, told, failed=True))
    content = gathered.content(looked=False)
    assert content == {
        "captures": 3,
        "replays": 6,
        "errors": [finding("a.py:1", tests=["t::a", "t::b"], fails=True)],
        "suspicions": [finding("a.py:2", tests=["t::a", "t::b"])],
        "judged": 12,
        "not_judged": {"gone": 3},
        "silenced": 3,
        "elsewhere": 0,
        "replays_elsewhere": 3,
    }


def test_what_was_found_of_a_replay_that_was_to_raise_fails_nothing_until_a_test_does() -> None:
    gathered = Gathered()
    gathered.add(report("t::a", {"errors": [finding("a.py:1", raised=True)]}))
    assert [each["fails"] for each in gathered.errors] == [False]
    gathered.add(report("t::b", {"errors": [finding("a.py:1", raised=True)]}, failed=True))
    gathered.add(report("t::c", {"errors": [finding("a.py:1", raised=True)]}))
    assert [each["fails"] for each in gathered.errors] == [True]


def test_where_nobody_looked_there_is_no_content() -> None:
    gathered = Gathered()
    gathered.add(SimpleNamespace(nodeid="t::a"))
    gathered.add(report("t::a", "nonsense"))
    assert gathered.content(looked=False) is None
    content = gathered.content(looked=True)
    assert content is not None
    assert (content["captures"], content["errors"]) == (0, [])
