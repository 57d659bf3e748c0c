"""Errors at the very end fail the session behind all hooks for it, and are told once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import late
from pytest_cudafork.check.late import LateErrors


class Check:
    """A check that finds what the test says."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def judge(self, session: Any) -> None:
        """Fail the session for what is there."""
        if self.left:
            session.exitstatus = 1

    def left_to_tell(self) -> list[str]:
        """Return what is there."""
        return self.left


def late_errors() -> tuple[Check, LateErrors, Any]:
    """Return a check, the plugin for it and a session that is good so far."""
    check: Any = Check()
    return check, LateErrors(check), SimpleNamespace(exitstatus=0)


def test_the_session_is_judged_behind_other_hooks_and_when_all_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check, errors, session = late_errors()
    errors.pytest_sessionfinish(session)
    assert session.exitstatus == 0
    check.left = ["fork refused at a.py:3"]
    errors.close()
    assert session.exitstatus == 1
    assert capsys.readouterr().err == "\nERROR: too late to fail a test:\nfork refused at a.py:3\n"


def test_without_a_session_it_is_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    check, errors, _ = late_errors()
    check.left = ["fork refused at conftest.py:3"]
    errors.close()
    assert "conftest.py:3" in capsys.readouterr().err


def test_a_child_of_the_session_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check, errors, session = late_errors()
    errors.pytest_sessionfinish(session)
    check.left = ["fork refused"]
    monkeypatch.setattr(late, "os", SimpleNamespace(getpid=lambda: -1))
    errors.close()
    assert session.exitstatus == 0
    assert capsys.readouterr().err == ""
