"""Findings: once or for each test, silenced or not, of replays that raised."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pathlib import Path  # noqa: E402

from pytest_cudafork.capture.judge.findings import (  # noqa: E402
    Findings,
    GraphFinding,
    Level,
    is_silenced,
)


def finding(where: str, level: Level = Level.ERROR, kind: str = "stale-data") -> GraphFinding:
    return GraphFinding(kind, level, "it is old", (("computed at", where),), "why", "todo")


def test_an_error_is_told_of_each_test_and_a_suspicion_once() -> None:
    found = Findings()
    for _ in range(2):
        for _ in range(3):
            found.add(finding("a.py:1"))
            found.add(finding("a.py:2", Level.SUSPICION))
        for _ in range(3):
            found.judged()
        found.cannot("too large")
        told = found.take()
        assert [each["lines"] for each in told["errors"]] == [[["computed at", "a.py:1"]]]
        assert told["judged"] == 3
        assert told["not_judged"] == {"too large": 1}
    assert "suspicions" not in told
    assert found.take() == {}


def test_a_comment_on_a_line_silences_all_or_one_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "x = 1  # captures: ignore\n"
        "x = 2  # noqa  captures: ignore[rng-frozen, stale-data]\n"
        "x = 3  # captures: ignore[rng-frozen]\n"
    )
    assert [is_silenced(finding(f"{file}:{line}")) for line in (1, 2, 3)] == [True, True, False]
    found = Findings()
    for _ in range(2):
        found.add(finding(f"{file}:1"))
    assert found.take() == {"silenced": 1}


def test_what_was_found_of_a_replay_that_raised_is_marked() -> None:
    found = Findings()
    found.replay_begins()
    found.add(finding("a.py:1"))
    found.replay_begins()
    found.add(finding("a.py:2", kind="freed-memory"))
    found.replay_raised()
    told: Any = found.take()["errors"]
    assert [(each["kind"], each["raised"]) for each in told] == [
        ("stale-data", False), ("freed-memory", True),
    ]  # fmt: skip


def test_errors_of_captures_that_are_never_replayed_are_told_and_not_kept() -> None:
    found = Findings()
    for _ in range(3):
        found.add(finding("a.py:1"))
        assert len(found.take()["errors"]) == 1
    assert not found._of_replay
