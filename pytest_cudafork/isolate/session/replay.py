"""What becomes of a child's messages: the hook calls the test would have made in this process."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.unpatched import contextlib, os, time
from pytest_cudafork.errors import ChildError, ChildTimeout
from pytest_cudafork.isolate import (
    captured_output,
    coverage_data,
    earlier_tests,
    live_text,
    passed_phases,
    policy,
    report_data,
)
from pytest_cudafork.isolate.session import failure, other_plugins, report_checks
from pytest_cudafork.process.protocol import caught_warnings, frames, messages
from pytest_cudafork.process.supervision import Ending, Said

_AFTER_THE_TEST = (messages.Done, messages.InternalError)
"""What a child may say when its test is over: the end of its session may fail."""
_HANDLED = (
    messages.Report,
    messages.CaughtWarning,
    messages.TerminalText,
    messages.Coverage,
    messages.PhaseBegins,
    messages.CaptureFiles,
    messages.Passed,
    messages.AsksPosition,
)
"""What a child may say beside what ``Replay`` keeps for the end."""
_NOT_KEPT = "not kept: the pytest process had no file descriptor left for it"
_TORN_DOWN_HERE = "teardown in the pytest process"


class _Shared(NamedTuple):
    """The files that a child has shared, by what they hold; none before it has done so."""

    kept: list[int]
    passed: list[int]
    streams: list[int]


class Replay:
    """Turns a child's messages into the hook calls that the test would have made here."""

    def __init__(self, item: pytest.Item, method: policy.Method) -> None:
        self._item = item
        self.method = method
        """How it is isolated, which its reports say."""
        self.capture_fds: list[int] = []
        """As with ``messages.CaptureFiles``, -1 for each that did not come; they belong to who runs
        the child."""
        self.answer: Callable[[messages.Message], None] | None = None
        """Sends a message to the child."""
        self._stop: BaseException | None = None
        self._output: list[tuple[str, str]] = []
        self.reports: list[pytest.TestReport] = []
        self._like: report_data.Likeness | None = None
        """What the next report may be like."""
        self.trouble: ChildError | None = None
        self.goes_on = False
        """Whether the child is in order, and done with this test."""
        self._phase: report_checks.Phase | None = None
        """What a test has told that reports when it is over only."""
        self.runs = item.stash.get(other_plugins.RUNS, 0) + 1
        """How often the test has begun."""
        self.again = False
        """Whether it has to begin once more, in another process."""
        self._allowed: tuple[type[messages.Message], ...] | None = None
        """The kinds of messages that may still come; None: all."""
        self.last = False
        """Whether the child will run no other test."""
        self.ahead = False
        """Whether the child has gone on to its next test."""
        self._told: tuple[Any, Any] = (False, False)
        """Why the session is to stop, as the child knows it from here."""
        self.number = 0
        """The how many-th test of its process it is, from 1 on."""
        self._began = time.monotonic()
        self.holds_teardown = False
        """Whether fixtures are torn down here, too, and the report of the teardown waits for it."""
        self._held: pytest.TestReport | None = None
        self._death: pytest.TestReport | None = None
        """What was reported here because the child could not."""

    @property
    def phase(self) -> report_checks.Phase:
        """The phase that the test is in, as far as it has told."""
        return self._phase or report_checks.next_phase(self.reports)

    @property
    def missing(self) -> report_checks.Phase | None:
        """The phase of which a test that went its way has not told, or None."""
        if self._stop is not None:
            return None
        calls = not self._item.config.getoption("setuponly", False)
        return report_checks.missing_phase(self.reports, calls=calls)

    def take(self, message: messages.Message, fds: list[int]) -> Said:
        """Handle one message.

        Raises:
            FrameError: It does not hold what it should, or is none of a test's.

        """
        self.capture_fds += fds
        report = warning = None
        passed: list[pytest.TestReport] = []
        try:
            if self._allowed is not None and not isinstance(message, self._allowed):
                raise ValueError("it came after the test was over")
            match message:
                case messages.Report():
                    data = other_plugins.sendable(self._item.config, message.data)
                    report = report_data.load(self._item, data, self._like)
                    report_checks.check_report(report)
                    self._like = report_data.likeness(report)
                case messages.Passed():
                    passed = passed_phases.reports_of(self._item, message.phases)
                case messages.TestOver():
                    passed = passed_phases.reports_of(self._item, message.passed)
                case messages.CaughtWarning():
                    sendable = other_plugins.sendable_warning(self._item.config, message)
                    warning = caught_warnings.load(sendable)
                case messages.TerminalText():
                    live_text.show(self._item.config, message)
                case messages.Coverage():
                    coverage_data.gathered(self._item.config).add(message.data)
                case messages.PhaseBegins():
                    self._phase = report_checks.phase_named(message.phase)
        except Exception as error:  # pytest and plugins take it apart by code of their own
            raise messages.damaged(message.kind, error) from error
        # outside: what the hooks raise is their own affair
        if report is not None:
            self._log(report)
        for one in passed:
            self._log(one)
        if warning is not None:
            self._item.ihook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": warning,
                    "nodeid": self._item.nodeid,
                    "when": "runtest",
                    "location": None,
                }
            )
        said = self._take_other(message)
        if getattr(message, "wait", False) and self.answer is not None:
            live_text.flush(self._item.config)
            asked = isinstance(message, messages.AsksPosition)
            position = live_text.position_of(self._item.config) if asked else None
            self._told = _stops_of(self._item.session)
            self.answer(messages.Shown(position, *self._told))
        return said

    def _stop_as(self, message: messages.TestOver) -> None:
        """Take over why the child's session stops; what came up here since it was told is later."""
        session = self._item.session
        shouldstop, shouldfail = _stops_of(session)
        if message.shouldstop and shouldstop == self._told[0]:
            session.shouldstop = message.shouldstop
        if message.shouldfail and shouldfail == self._told[1]:
            session.shouldfail = message.shouldfail

    def _take_other(self, message: messages.Message) -> Said:
        """Take note of what is no report, warning or text; these have been dealt with."""
        match message:
            case messages.CaptureFiles():
                lost = min(message.files, messages.MOST_FDS) - len(self.capture_fds)
                self.capture_fds += [-1] * lost
            case messages.Done():
                self._allowed = ()
                return Said.DONE
            case messages.TestOver():
                self._stop_as(message)
                self.last = message.last
                self._allowed = _AFTER_THE_TEST
                self.ahead = message.ahead
                if self.ahead:  # what is kept may be of the next test already
                    return Said.AHEAD
                for fd in self._shared.kept:
                    captured_output.forget(fd)
                return Said.LEAVING if self.last else Said.DONE
            case messages.RunsAgain():
                self.runs += 1
                self._phase = None
                other_plugins.announce_rerun(self._item)
            case messages.SessionStop():
                self._stop = pytest.exit.Exception(message.reason, message.returncode)
            case messages.Interrupt():
                self._stop = _interrupt(message)
            case messages.InternalError():
                apart = "\n\n" if "\n" in message.text else " "
                self.trouble = self.trouble or ChildError(
                    f"pytest failed in the process of this test:{apart}{message.text}"
                )
            case messages.TimedOut():
                self.trouble = self.trouble or ChildTimeout(
                    f"{message.text}\n\n{message.stacks}", None, message.stacks
                )
            case messages.TestMissing():
                self.trouble = self.trouble or ChildError(_missing(message))
            case _ if not isinstance(message, _HANDLED):
                raise frames.FrameError(f"there are no messages of kind {message.kind!r}")
        return Said.MORE

    def _log(self, report: pytest.TestReport) -> None:
        self.end_teardown()
        # attributes, because those travel on to the controller of pytest-xdist
        vars(report)["isolation"] = self.method.name
        if self.method.why:
            vars(report)["isolation_why"] = self.method.why
        if self.method.since:
            vars(report)["isolated_since"] = self.method.since
        if type(report) is pytest.TestReport:  # a subtest's report ends no phase
            self.reports.append(report)
            own = sum(each.duration for each in self.reports)
            vars(report)["isolation_seconds"] = max(0.0, time.monotonic() - self._began - own)
            earlier_tests.note(self._item, report)
            if self.holds_teardown and report.when == "teardown":
                self._held = report
                return
        self._item.ihook.pytest_runtest_logreport(report=report)

    def end_teardown(self, failed: pytest.TestReport | None = None) -> None:
        """Report the teardown that was held, with what has failed in that of this process, if any.

        It is one report: what gathers reports until that of the teardown takes a test for ended.
        """
        report, self._held = self._held, None
        if report is None:
            report = failed
        elif failed is not None:
            _add_failure(report, failed)
        if report is not None:
            self._item.ihook.pytest_runtest_logreport(report=report)

    def fail(self, phase: report_checks.Phase, error: ChildError, seconds: float = 0.0) -> None:
        """Report a failure that the child could not report."""
        self._close(self._failed(phase, error, seconds))

    def refuse(self, error: ChildError) -> None:
        """Report that the test was not run; no mark of its own expects that."""
        self._close(failure.report(self._item, "setup", error, [], ran=False))

    def fail_or_rerun(self, phase: report_checks.Phase, error: ChildError, seconds: float) -> None:
        """Report what became of a process that died; ``again`` if the test gets another."""
        report = self._failed(phase, error, seconds)
        if report.failed and other_plugins.rerun_elsewhere(
            self._item, self.runs, f"{type(error).__name__}: {error}"
        ):
            report.outcome = "rerun"  # type: ignore[assignment]  # as pytest-rerunfailures says it
            self.again = True
            self._log(report)  # pytest-rerunfailures reports no more of such a run, either
        else:
            self._close(report)

    def end(self, ending: Ending | None) -> None:
        """Report how the child ended if that was not as it should be.

        Args:
            ending: How; None: it is done with the test, and waits for another or is about to end.

        """
        if ending is not None:
            self.take_what_is_left()
        phase, trouble = self.phase, self.trouble
        if trouble is None and ending is not None:
            trouble = failure.error_of(ending, phase, self.method.timeout)
        if trouble is None and self.missing is not None:
            phase = self.missing
            trouble = failure.no_report(phase)
        if trouble is not None:
            self.add_output()
            self.fail_or_rerun(phase, trouble, 0.0 if ending is None else ending.seconds)

    @property
    def _shared(self) -> _Shared:
        return _Shared(self.capture_fds[:1], self.capture_fds[1:2], self.capture_fds[2:])

    def take_what_is_left(self) -> None:
        """Report the phases that a process had passed and not told of when it died."""
        left: list[pytest.TestReport] = []
        for fd in self._shared.passed:
            with contextlib.suppress(ValueError):  # a test has written there
                held = passed_phases.left_of(fd, self.number)
                left = passed_phases.reports_of(self._item, held)
        for report in left:
            if report.when not in report_checks.told_phases(self.reports):
                self._log(report)

    def _close(self, death: pytest.TestReport) -> None:
        """Report the death of a test, and the teardown that did not happen if it died before it.

        What gathers the reports of a test until its last one (pytest-html, JUnit files) would never
        show the test.
        """
        self._death = death
        self._log(death)
        if report_checks.missing_phase(self.reports, calls=False) == "teardown":
            self._log(failure.no_teardown(self._item, self.reports[-1]))

    def _failed(
        self, phase: report_checks.Phase, error: ChildError, seconds: float
    ) -> pytest.TestReport:
        # as pytest does: a report has the sections of the phases before
        told = self.reports[-1].sections if self.reports else ()
        sections = [*told, *self._output]
        return failure.report(self._item, phase, error, sections, seconds)

    def add_output(self) -> None:
        """Add what the dead child had written, and no report has said, to the failure's sections.

        What its pytest has read is kept for it; the rest is in the files of its capture.
        """
        phase = self.phase
        told = report_checks.told_phases(self.reports)
        shared = self._shared
        for fd in shared.kept:
            kept = [sections for when, sections in captured_output.kept(fd) if when not in told]
            self._output += [one for sections in kept for one in sections]
        for fd, name in zip(shared.streams, ("stdout", "stderr"), strict=False):
            if fd < 0:
                text = _NOT_KEPT
            else:
                text = os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
            if text:
                self._output.append((f"Captured {name} {phase}", text))

    def empty_shared_capture(self) -> None:
        """Drop what a forked child left in this process's capture files, which it shares.

        Else the next test would be shown the output.
        """
        pytest_internals.empty_capture(self._item.config)

    def conclude(self) -> None:
        """Tell plugins that gather results where tests run how this one ended."""
        other_plugins.conclude(self._item, self._death)

    def raise_stop(self) -> None:
        """Stop this session if the test stopped the child's."""
        if self._stop is not None:
            raise self._stop


def _add_failure(report: pytest.TestReport, failed: pytest.TestReport) -> None:
    """Let the report of a teardown say how another part of it has failed."""
    if report.failed:
        report.sections.append((_TORN_DOWN_HERE, failed.longreprtext))
        return
    report.outcome, report.longrepr = failed.outcome, failed.longrepr
    report.sections += [each for each in failed.sections if each not in report.sections]
    report.duration += failed.duration


def _interrupt(message: messages.Interrupt) -> KeyboardInterrupt:
    """Return what the test raised; its traceback is the line that did, which pytest shows."""
    interrupt = KeyboardInterrupt(*([message.text] if message.text else []))
    with contextlib.suppress(ValueError, OverflowError):  # no path, or no line, of a file
        code = compile("raise interrupt", message.path, "exec").replace(co_firstlineno=message.line)
        try:
            FunctionType(code, {"interrupt": interrupt})()
        except KeyboardInterrupt as raised:
            frames_of_it = raised.__traceback__
            return raised.with_traceback(frames_of_it and frames_of_it.tb_next)
    return interrupt


def _missing(message: messages.TestMissing) -> str:
    found, errors = message.found, message.errors
    if errors:
        told = "\n\n".join(f"Its collection failed:\n{error}" for error in errors)
        return f"the process of this test did not find it.\n\n{told}"
    text = f"the process of this test did not find it. It found {len(found)} tests"
    text += f": {', '.join(found[:20])}" if found else ""
    text += ", ..." if len(found) > 20 else ""
    return text + "\n\nIs its name or parameter the same in every process?"


def _stops_of(session: pytest.Session) -> tuple[Any, Any]:
    return frames.plain(session.shouldstop), frames.plain(session.shouldfail)
