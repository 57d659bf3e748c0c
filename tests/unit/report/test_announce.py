"""Other plugins are told of each touch and each checked capture once; a broken one is told of."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.capture.interface.check_names import CARRIED, LOOKED_AT
from pytest_cudafork.capture.story.verdicts import CheckedCapture
from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.report.announce import Announcer, say_untold
from tests.support.checked_sessions import TEST, LedgerSession, report
from tests.unit.report.test_terminal import Terminal

CAPTURE = CheckedCapture("the pair", "software", "passed")


class Theirs:
    """A plugin that notes what it is told, and may fail over it."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.touches: list[tuple[str, str]] = []
        self.captures: list[CheckedCapture] = []

    def pytest_cudafork_touch(self, config: pytest.Config, touch: Touch, nodeid: str) -> None:
        """Note a touch."""
        self.touches.append((touch.where, nodeid))
        if self.broken:
            raise ValueError("oops")

    def pytest_cudafork_capture_checked(self, capture: CheckedCapture, nodeid: str) -> None:
        """Note a capture."""
        assert nodeid == TEST
        self.captures.append(capture)


def announcer_of(
    pytester: pytest.Pytester, session: LedgerSession | None, *plugins: Theirs
) -> Announcer:
    """Return what tells these plugins of a session."""
    config = pytester.parseconfigure()
    for plugin in plugins:
        config.pluginmanager.register(plugin)
    return Announcer(config, session.state.watch if session is not None else None)


def finish(announcer: Announcer, status: int = 0) -> int:
    """End the session; return its exit status."""
    session: Any = SimpleNamespace(exitstatus=status, config=announcer._config)
    announcer.pytest_sessionfinish(session)
    return int(session.exitstatus)


def test_each_touch_is_told_once_to_each_plugin(pytester: pytest.Pytester, tmp_path: Path) -> None:
    session, first, second = LedgerSession(tmp_path), Theirs(), Theirs()
    announcer = announcer_of(pytester, session, first, second)
    session.touch(3, test="")
    announcer.pytest_collectreport()
    session.touch(4)
    session.fork()
    announcer.pytest_runtest_logreport(report())
    announcer.pytest_runtest_logreport(report())
    session.touch(5)
    assert finish(announcer) == 0
    at = f"{tmp_path}/test_a.py"
    assert first.touches == [(f"{at}:3", ""), (f"{at}:4", TEST), (f"{at}:5", TEST)]
    assert second.touches == first.touches


def test_a_plugin_that_comes_late_is_told_of_all(pytester: pytest.Pytester, tmp_path: Path) -> None:
    session, late = LedgerSession(tmp_path), Theirs()
    announcer = announcer_of(pytester, session)
    session.touch()
    announcer.pytest_runtest_logreport(report())
    announcer._config.pluginmanager.register(late)
    finish(announcer)
    assert len(late.touches) == 1


def test_what_was_seen_of_captures_comes_with_the_report(pytester: pytest.Pytester) -> None:
    theirs = Theirs()
    made = report("call")
    vars(made)[LOOKED_AT] = {"suspicions": [], "captures": 1, "backends": ["software"]}
    announcer_of(pytester, None, theirs).pytest_runtest_logreport(made)
    (told,) = theirs.captures
    assert (told.title, told.verdict, told.backend) == ("captured graphs", "passed", "software")


def test_captures_come_with_their_report(pytester: pytest.Pytester) -> None:
    theirs = Theirs()
    announcer = announcer_of(pytester, None, theirs)
    announcer.pytest_runtest_logreport(report())
    announcer.pytest_runtest_logreport(report("call", **{CARRIED: [CAPTURE.to_plain()]}))
    assert theirs.captures == [CAPTURE]


def test_what_raises_is_told_once_with_its_line_and_fails_the_session(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    session, broken, other = LedgerSession(tmp_path), Theirs(broken=True), Theirs()
    announcer = announcer_of(pytester, session, other, broken)
    session.touch(3)
    session.touch(4)
    assert finish(announcer) == pytest.ExitCode.TESTS_FAILED
    assert finish(announcer, pytest.ExitCode.INTERRUPTED) == pytest.ExitCode.INTERRUPTED
    assert len(broken.touches) == len(other.touches) == 2
    terminal: Any = Terminal()
    announcer.pytest_terminal_summary(terminal)
    (line,) = [line for line, _ in terminal.lines if line.startswith("ERROR")]
    assert "test_announce.py:" in line
    assert line.endswith("pytest_cudafork_touch raised ValueError: oops (2 times)")


def test_nothing_is_said_where_nothing_raised(pytester: pytest.Pytester) -> None:
    terminal: Any = Terminal()
    announcer_of(pytester, None).pytest_terminal_summary(terminal)
    assert terminal.lines == []


def test_the_fork_of_a_test_tells_nobody(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, theirs = LedgerSession(tmp_path), Theirs()
    announcer = announcer_of(pytester, session, theirs)
    session.touch()
    monkeypatch.setattr(announcer, "_pid", 1)
    announcer.pytest_runtest_logreport(report(**{CARRIED: [CAPTURE.to_plain()]}))
    assert theirs.touches == []
    assert theirs.captures == []


def test_without_a_summary_it_is_told_on_stderr(
    pytester: pytest.Pytester, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session, broken = LedgerSession(tmp_path), Theirs(broken=True)
    announcer = announcer_of(pytester, session, broken)
    session.touch(3)
    session.touch(4)
    finish(announcer)
    capsys.readouterr()
    announcer.pytest_unconfigure()
    announcer.pytest_unconfigure()
    err = capsys.readouterr().err
    assert err.count("raised ValueError: oops\n") == 1
    terminal: Any = Terminal()
    other = announcer_of(pytester, session, broken)
    finish(other)
    other.pytest_terminal_summary(terminal)
    other.pytest_unconfigure()
    assert capsys.readouterr().err == "", "the summary has told it"


def test_other_reasons_are_told_on_stderr_where_there_is_no_summary(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    announcer = announcer_of(pytester, None)
    session: Any = SimpleNamespace(exitstatus=0, config=announcer._config)
    fail_session(session, ["no GPU", "no baseline"])
    announcer.pytest_unconfigure()
    assert capsys.readouterr().err == "ERROR: no GPU\nERROR: no baseline\n"
    summarized = Announcer(session.config, None)
    summarized.pytest_terminal_summary(Terminal())  # type: ignore[arg-type]
    summarized.pytest_unconfigure()
    assert capsys.readouterr().err == "", "the summary has told it"


def test_what_a_stream_cannot_write_is_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    say_untold("\u00fc\udcff\n", stream)
    assert raw.getvalue() == b"\\xfc\\udcff\n"
    stream.close()
    say_untold("x", stream)
    say_untold("x", None)
