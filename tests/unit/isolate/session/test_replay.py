"""Tests of what becomes of a child's messages: hook calls, and what is kept for the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.errors import ChildError, ChildTimeout
from pytest_cudafork.isolate import report_data
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import other_plugins
from pytest_cudafork.isolate.session.replay import Replay
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.process.supervision import Said

WARNING = messages.CaughtWarning(None, "builtins.UserWarning", "mind this", "f.py", 3, None)


class Heard:
    """A plugin that keeps what it hears."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.warnings: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    def pytest_warning_recorded(self, warning_message: Any, nodeid: str, when: str) -> None:
        self.warnings.append((str(warning_message.message), nodeid, when))


@pytest.fixture
def item(pytester: pytest.Pytester) -> pytest.Item:
    return pytester.getitem("def test_x(): pass", "test_x")


@pytest.fixture
def heard(item: pytest.Item) -> Heard:
    plugin = Heard()
    item.config.pluginmanager.register(plugin)
    return plugin


@pytest.fixture
def replay(item: pytest.Item, heard: Heard) -> Replay:
    return Replay(item, Method("forkserver", why="a reason"))


def packed(item: pytest.Item, when: str, outcome: str = "passed") -> messages.Report:
    """Return a report as a child sends it."""
    report = pytest.TestReport(
        item.nodeid,
        item.location,
        {},
        outcome,
        None,
        when,
        duration=0.5,  # type: ignore[arg-type]
    )
    packer = report_data.ReportPacker(item.config)
    packer.begin()
    return messages.Report(packer.pack(report))


def test_reports_and_warnings_are_the_hook_calls_of_this_session(
    replay: Replay, heard: Heard, item: pytest.Item
) -> None:
    assert replay.phase == "setup"
    assert replay.take(packed(item, "setup"), []) is Said.MORE
    assert replay.phase == "call"
    assert replay.missing == "call"
    replay.take(WARNING, [])
    assert [report.when for report in heard.reports] == ["setup"]
    assert vars(heard.reports[0])["isolation"] == "forkserver"
    assert vars(heard.reports[0])["isolation_why"] == "a reason"
    assert heard.warnings == [("mind this", item.nodeid, "runtest")]
    for when in ("call", "teardown"):
        replay.take(packed(item, when), [])
    assert replay.missing is None


@pytest.mark.parametrize(
    ("message", "trouble"),
    [
        (messages.InternalError("lines"), "pytest failed in the process of this test:\n\nlines"),
        (messages.TimedOut("Timeout >1s", "stacks"), "Timeout >1s\n\nstacks"),
        (messages.TestMissing([], ["no such file"]), "Its collection failed:\nno such file"),
        (messages.TestMissing(["a"] * 30, []), "It found 30 tests: a, a"),
    ],
)
def test_trouble_is_kept_for_the_end_and_the_first_counts(
    message: messages.Message, trouble: str, replay: Replay
) -> None:
    assert replay.take(message, []) is Said.MORE
    replay.take(messages.InternalError("a later one"), [])
    assert trouble in str(replay.trouble)
    assert isinstance(replay.trouble, ChildTimeout) == isinstance(message, messages.TimedOut)


def test_a_test_that_is_over_may_have_more_to_follow(replay: Replay, item: pytest.Item) -> None:
    session = item.session
    assert replay.take(messages.TestOver(last=False), []) is Said.DONE
    assert replay.take(messages.InternalError("at the end"), []) is Said.MORE
    assert not session.shouldstop
    with pytest.raises(frames.FrameError, match="it came after the test was over"):
        replay.take(packed(item, "call"), [])
    assert replay.take(messages.Done(), []) is Said.DONE
    with pytest.raises(frames.FrameError, match="it came after the test was over"):
        replay.take(messages.Done(), [])


def test_the_last_test_of_a_process_may_stop_the_session(replay: Replay, item: pytest.Item) -> None:
    over = messages.TestOver(last=True, shouldstop="enough", shouldfail=False)
    assert replay.take(over, []) is Said.LEAVING
    assert replay.last
    assert item.session.shouldstop == "enough"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (messages.SessionStop("bye", 3), pytest.exit.Exception),
        (messages.Interrupt(), KeyboardInterrupt),
    ],
)
def test_what_stops_a_session_is_raised_at_the_end(
    message: messages.Message, error: type[BaseException], replay: Replay
) -> None:
    replay.raise_stop()
    replay.take(message, [])
    assert replay.missing is None
    with pytest.raises(error):
        replay.raise_stop()


def test_phases_and_reruns_are_noted(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[pytest.Item] = []
    monkeypatch.setattr(other_plugins, "announce_rerun", announced.append)
    replay.take(messages.PhaseBegins("teardown"), [])
    assert replay.phase == "teardown"
    with pytest.raises(frames.FrameError, match="no phase: 'collect'"):
        replay.take(messages.PhaseBegins("collect"), [])
    replay.take(messages.RunsAgain(), [])
    assert (replay.phase, replay.runs, len(announced)) == ("setup", 2, 1)


def test_a_child_that_waits_is_told_when_its_text_is_shown(replay: Replay) -> None:
    answers: list[messages.Message] = []
    replay.answer = answers.append
    replay.take(messages.TerminalText("text", None, wait=False), [])
    replay.take(messages.TerminalText("text", None, wait=True), [])
    assert answers == [messages.Shown()]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (messages.Report({}), "kind 'report' is damaged"),
        (messages.TerminalText("text", {}, wait=False), "kind 'terminal' is damaged"),
        (messages.Coverage(5), "kind 'coverage' is damaged"),
        (messages.Returned(None, ""), "there are no messages of kind 'returned'"),
    ],
)
def test_what_makes_no_sense_is_an_error_with_words(
    message: messages.Message, words: str, replay: Replay
) -> None:
    with pytest.raises(frames.FrameError, match=words):
        replay.take(message, [])


def test_the_output_of_a_dead_child_is_in_its_failure(replay: Replay, heard: Heard) -> None:
    fds = [os.memfd_create(name) for name in ("out", "err")]
    os.write(fds[0], b"last words")
    replay.take(messages.CaptureFiles(), fds)
    replay.add_output()
    replay.fail("call", ChildError("it died"), 1.5)
    (report,) = heard.reports
    assert (report.when, report.outcome, report.duration) == ("call", "failed", 1.5)
    assert report.sections == [("Captured stdout setup", "last words")]
    for fd in fds:
        os.close(fd)
    replay.refuse(ChildError("no process"))
    assert heard.reports[-1].when == "setup"


@pytest.mark.parametrize("again", [False, True])
def test_a_death_may_have_the_test_run_again(
    again: bool, replay: Replay, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide: Callable[..., bool] = lambda item, runs, error: again  # noqa: E731
    monkeypatch.setattr(other_plugins, "rerun_elsewhere", decide)
    replay.fail_or_rerun("call", ChildError("it died"), 1.5)
    assert replay.again is again
    assert heard.reports[0].outcome == ("rerun" if again else "failed")


def test_a_shared_capture_is_emptied(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[Any] = []
    monkeypatch.setattr(
        "pytest_cudafork.compat.pytest_internals.empty_capture", lambda config: emptied.append(1)
    )
    monkeypatch.setattr(
        "pytest_cudafork.compat.pytest_internals.captured_streams",
        lambda config: (SimpleNamespace(), SimpleNamespace()),
    )
    replay.empty_shared_capture()
    assert emptied == [1]
