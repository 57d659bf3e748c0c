"""Owns running one whole test in a child and replaying its reports here. Runs in the parent.

It does not choose the method (``policy.py``) and knows of the child only what it sends.

Covered: set-up, call and teardown; every report, section, warning, subtest, property and duration;
outcomes as they are; a crash, exit or hang as a failure of its phase; descendants. Not covered:
what the test changes in objects of this process, ``record_testsuite_property`` and
``record_xml_attribute``, ``caplog`` sections of a phase that crashed, descendants that left the
child's process group when it ended by itself. With "spawn" and "forkserver" also: fixtures of a
wider scope are set up anew in the child, and plugins passed as objects to ``pytest.main`` are not
there.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_cudafork.child_errors import ChildError, ChildTimeout
from pytest_cudafork.isolate import call, failure, policy, received, termination, wire
from pytest_cudafork.isolate.child_env import CHILD_ENV
from pytest_cudafork.isolate.children import Children, Companion
from pytest_cudafork.isolate.supervise import Said

_AFTER_THE_TEST = ("done", "internal")
"""What a child may say when its test is over: the end of its session may fail."""


def isolate(
    item: pytest.Item,
    nextitem: pytest.Item | None,
    method: policy.Method,
    children: Children,
    following: pytest.Item | None = None,
) -> bool:
    """Run a test's whole protocol in a child; for ``pytest_runtest_protocol``, so returns True.

    Args:
        item: The test.
        nextitem: The one that runs after it in this process.
        method: How; with a refusal, the test fails with it.
        children: The session's.
        following: The next test that shares the child, if there is one.

    Raises:
        pytest.exit.Exception: The test called ``pytest.exit``.
        KeyboardInterrupt: The test raised it, or it came here; the child is gone.

    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    replay = Replay(item, method)
    if method.refusal:
        replay.fail("setup", ChildError(method.refusal))
    else:
        with termination.told(item.nodeid):
            _run(item, following, replay, method, children)
    _tear_down_here(item, nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    replay.raise_stop()
    return True


def _run(
    item: pytest.Item,
    following: pytest.Item | None,
    replay: Replay,
    method: policy.Method,
    children: Children,
) -> None:
    """Run the child and replay it; a child that cannot be had is a failed set-up."""
    try:
        companion = children.companion_for(item, following, method)
    except (ChildError, OSError, RuntimeError) as error:
        # RuntimeError: CudaForkError, the guard's refusal, and "can't start new thread"
        text = f"no process could be started for this test by {method.name}: {error}"
        replay.fail("setup", ChildError(text))
        return
    replay.capture_fds = companion.capture_fds
    try:
        _watch(companion, replay, method, whole=bool(item.stash.get(CHILD_ENV, {})))
    except pytest.fail.Exception as error:
        # pytest-timeout fails the test from a signal handler, wherever this process is
        replay.add_output()
        replay.fail(
            failure.next_phase(replay.reports),
            ChildTimeout(f"the process of this test was killed, because of: {error.msg}"),
        )
        return
    finally:
        if companion.forked:
            replay.empty_shared_capture()
        if not replay.goes_on:
            companion.close()
        else:
            children.keep(companion, None if replay.last else following)


def _watch(companion: Companion, replay: Replay, method: policy.Method, *, whole: bool) -> None:
    """Take what the child says of one test; report how it ended if that was not as it should be.

    ``whole`` waits until nothing is left of the process, so that what it held is free again.
    """
    ending = companion.supervisor.watch(replay.take, method.timeout, until_done=not whole)
    replay.goes_on = ending is None
    phase = failure.next_phase(replay.reports)
    trouble = replay.trouble
    if trouble is None and ending is not None:
        trouble = failure.error_of(ending, phase, method.timeout)
    if trouble is None and replay.missing is not None:
        phase = replay.missing
        trouble = failure.no_report(phase)
    if trouble is not None:
        replay.add_output()
        replay.fail(phase, trouble, 0.0 if ending is None else ending.seconds)


class Replay:
    """Turns a child's messages into the hook calls that the test would have made here."""

    def __init__(self, item: pytest.Item, method: policy.Method) -> None:
        self._item = item
        self._method = method
        self.capture_fds: list[int] = []
        """The files that hold the child's captured output; they belong to who runs the child."""
        self._stop: BaseException | None = None
        self._output: list[tuple[str, str]] = []
        self.reports: list[pytest.TestReport] = []
        self.trouble: ChildError | None = None
        self.goes_on = False
        """Whether the child is in order, and done with this test."""
        self._over = False
        self.last = False
        """Whether the child will run no other test."""

    @property
    def missing(self) -> failure.Phase | None:
        """The phase of which a test that went its way has not told, or None."""
        if self._stop is not None:
            return None
        calls = not self._item.config.getoption("setuponly", False)
        return failure.missing_phase(self.reports, calls=calls)

    def take(self, message: wire.Message, fds: list[int]) -> Said:
        """Handle one message.

        Raises:
            WireError: It is not what a message of its kind should be.

        """
        kind = message["kind"]
        self.capture_fds += fds
        try:
            self._check(message)
            if kind == "report":
                report = self._load_report(message["data"])
            elif kind == "warning":
                warning = call.load_warning(message)
            else:
                return self._take_other(kind, message)
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise wire.WireError(
                f"a message of kind {kind!r} is damaged ({type(error).__name__}: {error})"
            ) from error
        # outside: what the hooks raise is their own affair
        if kind == "report":
            self._log(report)
        else:
            self._item.ihook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": warning,
                    "nodeid": self._item.nodeid,
                    "when": "runtest",
                    "location": None,
                }
            )
        return Said.MORE

    def _check(self, message: wire.Message) -> None:
        if self._over and message["kind"] not in _AFTER_THE_TEST:
            raise ValueError("it came after the test was over")
        received.check_message(message)

    def _take_other(self, kind: str, message: wire.Message) -> Said:
        session = self._item.session
        if kind == "done":
            return Said.DONE
        if kind == "over":
            session.shouldstop = session.shouldstop or message["shouldstop"]
            session.shouldfail = session.shouldfail or message["shouldfail"]
            self.last = message["last"]
            self._over = True
            return Said.LEAVING if self.last else Said.DONE
        if kind == "stop":
            self._stop = pytest.exit.Exception(message["reason"], message["returncode"])
        elif kind == "interrupt":
            self._stop = KeyboardInterrupt()
        elif kind == "internal":
            self.trouble = self.trouble or ChildError(
                f"pytest failed in the process of this test:\n\n{message['text']}"
            )
        elif kind == "missing":
            self.trouble = self.trouble or ChildError(_missing(message))
        elif kind != "capture":
            raise wire.WireError(f"there are no messages of kind {kind!r}")
        return Said.MORE

    def _load_report(self, data: Any) -> pytest.TestReport:
        config = self._item.config
        kwargs = data.get("_subtest.context", {}).get("kwargs", {})
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        if not isinstance(report, pytest.TestReport):
            raise TypeError(f"no report of a test: {type(report).__name__}")
        received.check_report(report)
        report.nodeid = self._item.nodeid  # it may differ outside the root directory
        if kwargs and hasattr(report, "context"):
            # pytest 9 takes the repr of these once more on the way back: i='1' for i=1
            object.__setattr__(report.context, "kwargs", kwargs)
        return report

    def _log(self, report: pytest.TestReport) -> None:
        # attributes, because those travel on to the controller of pytest-xdist
        vars(report)["isolation"] = self._method.name
        if self._method.why:
            vars(report)["isolation_why"] = self._method.why
        if type(report) is pytest.TestReport:
            self.reports.append(report)
        else:  # a subtest's report ends no phase
            _count_failed_subtest(self._item.config, report)
        self._item.ihook.pytest_runtest_logreport(report=report)

    def fail(self, phase: failure.Phase, error: ChildError, seconds: float = 0.0) -> None:
        """Report a failure that the child could not report."""
        # as pytest does: a report has the sections of the phases before
        sections = [*(self.reports[-1].sections if self.reports else ()), *self._output]
        self._log(failure.report(self._item, phase, error, sections, seconds))

    def add_output(self) -> None:
        """Add what the dead child had written, and nobody has read, to the failure's sections."""
        phase = failure.next_phase(self.reports)
        for fd, name in zip(self.capture_fds, ("stdout", "stderr"), strict=False):
            text = os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
            if text:
                self._output.append((f"Captured {name} {phase}", text))

    def empty_shared_capture(self) -> None:
        """Drop what a forked child left in this process's capture files, which it shares.

        Else the next test would be shown the output.
        """
        manager: Any = self._item.config.pluginmanager.get_plugin("capturemanager")
        if getattr(manager, "_global_capturing", None) is not None:
            manager.read_global_capture()

    def raise_stop(self) -> None:
        """Stop this session if the test stopped the child's."""
        if self._stop is not None:
            raise self._stop


def _count_failed_subtest(config: pytest.Config, report: pytest.TestReport) -> None:
    """Count a failed subtest where pytest counts those of this process.

    From that number it decides, when a report is shown, that a test with failed subtests failed.
    """
    import sys

    subtests: Any = sys.modules.get("_pytest.subtests")  # pytest >= 9
    if subtests is None or not report.failed or not isinstance(report, subtests.SubtestReport):
        return
    counts: Any = config.stash.get(subtests.failed_subtests_key, None)
    if counts is not None:
        counts[getattr(report, "id", report.nodeid)] += 1


def _missing(message: wire.Message) -> str:
    found = message["found"]
    text = f"the process of this test did not find it. It found {len(found)} tests"
    text += f": {', '.join(found[:20])}" if found else ""
    text += ", ..." if len(found) > 20 else ""
    for error in message["errors"]:
        text += f"\n\nIts collection failed:\n{error}"
    return text + "\n\nIs its name or parameter the same in every process?"


def _tear_down_here(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tear down the fixtures of this process that the next test does not need."""
    from _pytest.runner import CallInfo

    session = item.session
    if session.shouldfail or session.shouldstop:
        nextitem = None
    state = session._setupstate
    if not state.stack:
        return
    outcome = CallInfo.from_call(
        lambda: state.teardown_exact(nextitem),
        when="teardown",
        reraise=(pytest.exit.Exception, KeyboardInterrupt),
    )
    if outcome.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=outcome)
        item.ihook.pytest_runtest_logreport(report=report)
