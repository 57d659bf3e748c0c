"""Tests of the hook calls that become of a child's messages, without a child."""

from __future__ import annotations

import os
import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import allure
from pytest_cudafork.errors import ChildCrashed, ChildError, ChildTimeout
from pytest_cudafork.isolate import captured_output, coverage_data, live_text, report_data
from pytest_cudafork.isolate.child.reporter import ReportPacker
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import other_plugins, replay
from pytest_cudafork.isolate.session.replay import Replay
from pytest_cudafork.process.protocol import caught_warnings, frames, messages
from pytest_cudafork.process.supervision import Said
from tests.unit.isolate.session import Heard, items_of

FORK = Method("fork")


@pytest.fixture
def item(pytester: pytest.Pytester) -> pytest.Item:
    """A test of a session in this process."""
    (made,) = items_of(pytester, "def test_it(): pass")
    return made


@pytest.fixture
def heard(item: pytest.Item) -> Heard:
    """What the session is told."""
    return Heard(item.config)


def report(item: pytest.Item, when: str, outcome: str = "passed", **changes: Any) -> Any:
    """Return the message for a report."""
    given: dict[str, Any] = {
        "nodeid": item.nodeid,
        "location": item.location,
        "keywords": {},
        "outcome": outcome,
        "longrepr": None if outcome == "passed" else "it failed",
        "when": when,
        "sections": [(f"Captured stdout {when}", "text")],
        **changes,
    }
    packer = ReportPacker(item.config)
    packer.begin()
    return messages.Report(packer.pack(pytest.TestReport(**given)))


def test_reports_are_told_as_they_come_and_say_how_the_test_was_isolated(
    item: pytest.Item, heard: Heard
) -> None:
    replayed = Replay(item, Method("spawn", why="not fork: 2 threads", since="t.py::b"))
    phases = [replayed.phase]
    for when in ("setup", "call", "teardown"):
        assert replayed.take(report(item, when), []) is Said.MORE
        phases.append(replayed.phase)
    assert phases == ["setup", "call", "teardown", "teardown"]
    assert heard.calls == ["setup passed", "call passed", "teardown passed"]
    told = [(vars(one)["isolation"], vars(one)["isolation_why"]) for one in heard.reports]
    assert told == [("spawn", "not fork: 2 threads")] * 3
    assert {vars(one)["isolated_since"] for one in heard.reports} == {"t.py::b"}
    assert replayed.reports == heard.reports
    assert replayed.missing is None


def test_a_report_says_what_the_process_cost_beside_its_phases(
    item: pytest.Item, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([100.0, 101.0, 104.0, 104.5])
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    replayed = Replay(item, FORK)
    for when, seconds in (("setup", 0.25), ("call", 2.0), ("teardown", 9.0)):
        replayed.take(report(item, when, duration=seconds), [])
    costs = [vars(one)["isolation_seconds"] for one in heard.reports]
    assert costs == [0.75, 1.75, 0.0], "a clock that was set back makes none negative"


def test_what_has_not_been_told_is_missing(item: pytest.Item, heard: Heard) -> None:
    replayed = Replay(item, FORK)
    missing = [replayed.missing]
    replayed.take(report(item, "setup"), [])
    missing.append(replayed.missing)
    item.config.option.setuponly = True
    missing.append(replayed.missing)
    replayed.take(messages.Interrupt(), [])
    missing.append(replayed.missing)
    assert missing == ["setup", "call", "teardown", None]
    assert "isolation_why" not in vars(heard.reports[0])


def test_a_phase_that_is_told_beforehand_counts(item: pytest.Item) -> None:
    replayed = Replay(item, FORK)
    phases = []
    for message in (messages.PhaseBegins("teardown"), messages.RunsAgain()):
        replayed.take(message, [])
        phases.append(replayed.phase)
    assert phases == ["teardown", "setup"]
    with pytest.raises(frames.FrameError, match="no phase: 'lunch'"):
        replayed.take(messages.PhaseBegins("lunch"), [])


@pytest.mark.parametrize("data", [None, {"$report_type": "TestReport"}, {}])
def test_a_report_that_is_none_is_refused(item: pytest.Item, heard: Heard, data: object) -> None:
    with pytest.raises(frames.FrameError, match="report"):
        Replay(item, FORK).take(messages.Report(data), [])
    assert heard.calls == []


@pytest.mark.parametrize("when", ["call", "lunch"])
def test_a_report_may_be_like_the_one_before(item: pytest.Item, heard: Heard, when: str) -> None:
    like = {"when": when, "duration": 0.5, "start": 1.0, "stop": 1.5, report_data.SAME: True}
    with pytest.raises(frames.FrameError, match="no report before"):
        Replay(item, FORK).take(messages.Report(like), [])
    replayed = Replay(item, FORK)
    replayed.take(report(item, "setup"), [])
    if when == "lunch":
        with pytest.raises(frames.FrameError, match="when is 'lunch'"):
            replayed.take(messages.Report(like), [])
        return
    replayed.take(messages.Report(like), [])
    setup, call = replayed.reports
    assert (call.when, call.duration, call.passed) == ("call", 0.5, True)
    assert (call.nodeid, call.location, call.keywords) == (
        *(setup.nodeid, setup.location, setup.keywords),
    )


def test_what_has_not_passed_is_not_taken_for_the_like_of_one_that_has(
    item: pytest.Item, heard: Heard
) -> None:
    like = {"when": "call", "duration": 0.5, "start": 1.0, "stop": 1.5, report_data.SAME: True}
    replayed = Replay(item, FORK)
    replayed.take(report(item, "setup"), [])
    with pytest.raises(frames.FrameError, match="has not passed"):
        replayed.take(messages.Report({**like, "outcome": "failed"}), [])
    assert len(replayed.reports) == 1


def test_a_report_that_pytest_would_stumble_over_is_refused(
    item: pytest.Item, heard: Heard
) -> None:
    message = report(item, "call")
    message.data["outcome"] = 5
    with pytest.raises(frames.FrameError, match="outcome is 5"):
        Replay(item, FORK).take(message, [])
    assert heard.calls == []


def test_what_a_hook_raises_is_its_own_affair(item: pytest.Item) -> None:
    class Broken:
        def pytest_runtest_logreport(self) -> None:
            raise ZeroDivisionError

    item.config.pluginmanager.register(Broken())
    with pytest.raises(ZeroDivisionError):
        Replay(item, FORK).take(report(item, "setup"), [])


def test_a_warning_is_recorded_under_the_name_of_the_test(item: pytest.Item, heard: Heard) -> None:
    caught = warnings.WarningMessage(UserWarning("careful"), UserWarning, "a.py", 3)
    heard.warnings.clear()  # what pytest says of the configuration that the test has made
    Replay(item, FORK).take(caught_warnings.pack(caught), [])
    assert heard.warnings == [f"runtest of {item.nodeid}: careful"]


def test_text_and_coverage_go_where_they_are_gathered(
    item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(live_text, "show", lambda config, message: shown.append(message.text))
    gathered = SimpleNamespace(add=shown.append)
    monkeypatch.setattr(coverage_data, "gathered", lambda config: gathered)
    replayed = Replay(item, FORK)
    replayed.take(messages.TerminalText("text", None, False), [])
    replayed.take(messages.Coverage({"lines": []}), [])
    assert shown == ["text", {"lines": []}]


def test_a_child_that_waits_is_answered_once_its_message_is_shown(
    item: pytest.Item, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[object] = []
    monkeypatch.setattr(live_text, "flush", lambda config: order.append("flushed"))
    replayed = Replay(item, FORK)
    replayed.answer = order.append
    replayed.take(report(item, "setup"), [])
    assert order == []
    replayed.take(messages.Report(report(item, "call").data, wait=True), [])
    assert order == ["flushed", messages.Shown()]
    assert heard.calls == ["setup passed", "call passed"]
    item.session.shouldfail = "stopping after 1 failures"
    replayed.take(messages.Report(report(item, "teardown").data, wait=True), [])
    assert order[-1] == messages.Shown(shouldfail="stopping after 1 failures")


def test_after_the_end_of_the_test_little_may_come(item: pytest.Item) -> None:
    replayed = Replay(item, FORK)
    assert replayed.take(messages.TestOver(last=True), []) is Said.LEAVING
    assert replayed.last
    with pytest.raises(frames.FrameError, match="it came after the test was over"):
        replayed.take(messages.Interrupt(), [])
    replayed.take(messages.InternalError("late"), [])
    assert replayed.take(messages.Done(), []) is Said.DONE
    with pytest.raises(frames.FrameError, match="it came after the test was over"):
        replayed.take(messages.InternalError("later"), [])


@pytest.mark.parametrize(
    ("told", "later_here", "reason"),
    [
        ("stopping after 1 failures", "", "of the teardown"),
        ("stopping after 1 failures", "stopping after 2 failures", "stopping after 2 failures"),
        ("", "stopping after 1 failures", "stopping after 1 failures"),
        ("", "", "of the teardown"),
    ],
)
def test_the_last_reason_to_stop_counts(
    item: pytest.Item, heard: Heard, told: str, later_here: str, reason: str
) -> None:
    replayed = Replay(item, FORK)
    replayed.answer = lambda message: None
    item.session.shouldfail = told or False
    replayed.take(messages.Report(report(item, "setup").data, wait=bool(told)), [])
    item.session.shouldfail = later_here or told or False
    replayed.take(report(item, "call"), [])
    replayed.take(report(item, "teardown"), [])
    replayed.take(messages.TestOver(last=False, shouldfail="of the teardown"), [])
    assert item.session.shouldfail == reason


def test_a_child_that_runs_another_test_is_done_with_this(item: pytest.Item) -> None:
    replayed = Replay(item, FORK)
    assert replayed.take(messages.TestOver(last=False, shouldstop="enough"), []) is Said.DONE
    assert not replayed.last
    assert (item.session.shouldstop, item.session.shouldfail) == ("enough", False)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (messages.Report({}), "kind 'report' is damaged"),
        (messages.TerminalText("text", {}, wait=False), "kind 'terminal' is damaged"),
        (messages.Coverage(5), "kind 'coverage' is damaged"),
        (messages.Returned(None, "1"), "there are no messages of kind 'returned'"),
    ],
)
def test_what_makes_no_sense_is_an_error_with_words(
    item: pytest.Item, message: messages.Message, words: str
) -> None:
    with pytest.raises(frames.FrameError, match=words):
        Replay(item, FORK).take(message, [])


def test_runs_of_a_test_are_counted(item: pytest.Item, heard: Heard) -> None:
    item.stash[other_plugins.RUNS] = 2
    replayed = Replay(item, FORK)
    assert replayed.runs == 3
    replayed.take(messages.RunsAgain(), [])
    assert replayed.runs == 4
    assert heard.calls == ["finish", "start"]


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (messages.SessionStop("enough", 3), pytest.exit.Exception, "enough"),
        (messages.Interrupt(), KeyboardInterrupt, None),
        (messages.Interrupt("by hand", "test_a.py", 7), KeyboardInterrupt, "by hand"),
    ],
)
def test_what_stops_the_childs_session_stops_this_one(
    item: pytest.Item, message: messages.Message, kind: type, words: str | None
) -> None:
    replayed = Replay(item, FORK)
    replayed.raise_stop()
    replayed.take(message, [])
    with pytest.raises(kind, match=words) as raised:
        replayed.raise_stop()
    assert getattr(raised.value, "returncode", 3) == 3


@pytest.mark.parametrize(
    ("path", "line", "shown"),
    [
        ("test_a.py", 70_000, ("test_a.py", 70_000)),
        ("", 0, ("", 0)),
        ("a\0.py", 1, None),
        ("test_a.py", 1 << 70, None),
    ],
)
def test_an_interrupt_is_shown_at_its_line_in_the_test(
    item: pytest.Item, path: str, line: int, shown: tuple[str, int] | None
) -> None:
    replayed = Replay(item, FORK)
    replayed.take(messages.Interrupt("by hand", path, line), [])
    with pytest.raises(KeyboardInterrupt) as raised:
        replayed.raise_stop()
    last = raised.traceback[-1].frame.code.raw.co_filename, raised.traceback[-1].lineno + 1
    assert last == shown or (shown is None and last[0].endswith("replay.py"))
    assert len(raised.traceback) == (3 if shown else 2)


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (messages.InternalError("text"), ChildError, "in the process of this test: text"),
        (messages.InternalError("a\nb"), ChildError, "in the process of this test:\n\na\nb"),
        (messages.TimedOut("Timeout >1s", "stacks"), ChildTimeout, "Timeout >1s\n\nstacks"),
        (messages.TestMissing([], ["no a"]), ChildError, "Its collection failed:\nno a"),
        (messages.TestMissing([], []), ChildError, "It found 0 tests\n\nIs its name"),
        (messages.TestMissing(["a", "b"], []), ChildError, "It found 2 tests: a, b\n\nIs"),
        (messages.TestMissing(["a"] * 21, []), ChildError, "21 tests: (a, ){19}a, ...\n\nIs"),
    ],
)
def test_the_first_trouble_is_kept(
    item: pytest.Item, message: messages.Message, kind: type, words: str
) -> None:
    replayed = Replay(item, FORK)
    replayed.take(message, [])
    replayed.take(messages.InternalError("another"), [])
    assert type(replayed.trouble) is kind
    assert re.search(words, str(replayed.trouble))


def memory_file(text: bytes) -> int:
    """Return the descriptor of a file with this text."""
    fd = os.memfd_create("captured")
    os.write(fd, text)
    return fd


def test_a_failure_has_the_output_of_the_phases_before_and_what_nobody_has_read(
    item: pytest.Item, heard: Heard
) -> None:
    replayed = Replay(item, FORK)
    replayed.take(report(item, "setup"), [])
    fds = [memory_file(text) for text in (b"", b"", b"out \xff", b"")]
    assert replayed.take(messages.CaptureFiles(), fds) is Said.MORE
    assert replayed.capture_fds == fds
    replayed.add_output()
    replayed.fail("call", ChildCrashed("SIGSEGV in call", -11), 2.0)
    made, end = heard.reports[-2:]
    assert (made.when, made.outcome, made.duration) == ("call", "failed", 2.0)
    assert made.sections == [
        ("Captured stdout setup", "text"),
        ("Captured stdout call", "out \ufffd"),
    ]
    # a teardown that did not happen: what waits for a test's last report would wait for ever
    assert (end.when, end.outcome, end.duration) == ("teardown", "passed", 0)
    assert end.sections == made.sections
    for fd in fds:
        os.close(fd)


def test_what_was_read_for_a_report_that_never_came_is_in_the_failure(
    item: pytest.Item, heard: Heard
) -> None:
    kept, replayed = captured_output.Kept(), Replay(item, FORK)
    replayed.take(messages.CaptureFiles(), [kept.fd])
    kept.keep("setup", [("Captured stdout setup", "text")])
    replayed.take(report(item, "setup"), [])
    kept.keep("call", [("Captured log call", "logged")])
    replayed.add_output()
    replayed.fail("call", ChildTimeout("time limit exceeded"))
    assert heard.reports[-2].sections == [
        ("Captured stdout setup", "text"),
        ("Captured log call", "logged"),
    ]
    replayed.take(messages.TestOver(last=False), [])
    assert captured_output.kept(kept.fd) == []  # the next one may die before it begins
    os.close(kept.fd)


@pytest.mark.parametrize("came", [1, 3])
def test_output_whose_files_could_not_be_handed_over_is_told_as_lost(
    item: pytest.Item, heard: Heard, came: int
) -> None:
    """So it is where this process has no descriptor left for them: the kernel leaves them out."""
    fds = [memory_file(text) for text in (b"", b"", b"out")[:came]]
    replayed = Replay(item, FORK)
    replayed.take(messages.CaptureFiles(4), list(fds))
    replayed.take(report(item, "setup"), [])
    replayed.take_what_is_left()
    replayed.add_output()
    replayed.fail("call", ChildCrashed("SIGSEGV in call", -11))
    lost = "not kept: the pytest process had no file descriptor left for it"
    assert heard.reports[-2].sections == [
        ("Captured stdout setup", "text"),
        ("Captured stdout call", "out" if came == 3 else lost),
        ("Captured stderr call", lost),
    ]
    replayed.take(messages.TestOver(last=False), [])
    for fd in fds:
        os.close(fd)


def test_a_test_that_is_not_run_fails_in_its_set_up_whatever_its_marks_expect(
    item: pytest.Item, heard: Heard
) -> None:
    item.add_marker(pytest.mark.xfail)
    Replay(item, FORK).refuse(ChildError("no process"))
    assert heard.calls == ["setup failed", "teardown passed"]
    Replay(item, FORK).fail("setup", ChildError("it died"))
    assert heard.calls[2:] == ["setup skipped", "teardown passed"]


def test_a_death_after_all_phases_ends_the_test_no_second_time(
    item: pytest.Item, heard: Heard
) -> None:
    replayed = Replay(item, FORK)
    for phase in ("setup", "call", "teardown"):
        replayed.take(report(item, phase), [])
    replayed.fail("teardown", ChildError("it died"))
    assert heard.calls[3:] == ["teardown failed"]


@pytest.mark.parametrize("died", [True, False])
def test_a_plugin_that_gathers_results_is_told_who_writes_that_of_the_test(
    item: pytest.Item, heard: Heard, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(allure, "drop_result", lambda item: told.append(("drop",)))
    monkeypatch.setattr(allure, "enter_failure", lambda item, report: told.append((report.when,)))
    replayed = Replay(item, FORK)
    if died:
        replayed.fail("setup", ChildError("it died"))
    replayed.conclude()
    assert told == [("setup",) if died else ("drop",)]


@pytest.mark.parametrize("reruns", [True, False])
def test_a_test_whose_process_died_runs_again_if_the_plugin_says_so(
    item: pytest.Item, heard: Heard, monkeypatch: pytest.MonkeyPatch, reruns: bool
) -> None:
    error = ChildCrashed("SIGSEGV in call", -11)
    asked: list[object] = []

    def rerun_elsewhere(*args: object) -> bool:
        asked.append(args)
        return reruns

    monkeypatch.setattr(other_plugins, "rerun_elsewhere", rerun_elsewhere)
    replayed = Replay(item, FORK)
    replayed.fail_or_rerun("call", error, 1.0)
    assert replayed.again is reruns
    assert asked == [(item, 1, "ChildCrashed: SIGSEGV in call")]
    assert heard.calls == ["call rerun" if reruns else "call failed"]


def test_an_expected_failure_is_not_run_again(
    item: pytest.Item, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_plugins, "rerun_elsewhere", lambda *args: True)
    item.add_marker(pytest.mark.xfail)
    replayed = Replay(item, FORK)
    replayed.fail_or_rerun("call", ChildCrashed("SIGSEGV in call", -11), 1.0)
    assert not replayed.again
    assert heard.calls == ["call skipped"]


def test_what_a_forked_child_left_in_the_capture_is_dropped(item: pytest.Item) -> None:
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    capture.resume_global_capture()
    os.write(1, b"of this process")
    before = capture.read_global_capture()
    os.write(1, b"of the child")
    Replay(item, FORK).empty_shared_capture()
    after = capture.read_global_capture()
    capture.suspend_global_capture()
    assert (tuple(before), tuple(after)) == (("of this process", ""), ("", ""))
