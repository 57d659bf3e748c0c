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
import pickle
from typing import Any

import pytest

from pytest_cudafork.child_errors import ChildError, ChildTimeout
from pytest_cudafork.isolate import (
    blackbox,
    call,
    child_session,
    failure,
    launch,
    policy,
    supervise,
    wire,
)
from pytest_cudafork.isolate.forkserver import server_of


def run_isolated(
    item: pytest.Item, nextitem: pytest.Item | None, *, method: str, timeout: float | None
) -> bool:
    """Run a test's whole protocol in a child; for ``pytest_runtest_protocol``, so returns True.

    Args:
        item: The test.
        nextitem: The one that runs after it in this process.
        method: "fork", "forkserver" or "spawn".
        timeout: Its time limit in seconds, the start of the child included; None: no limit.

    Raises:
        pytest.exit.Exception: The test called ``pytest.exit``.
        KeyboardInterrupt: The test raised it, or it came here; the child is gone.

    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    replay = Replay(item)
    try:
        _run(item, replay, method, timeout)
    finally:
        replay.close()
    _tear_down_here(item, nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    replay.raise_stop()
    return True


def isolate(item: pytest.Item, nextitem: pytest.Item | None, method: policy.Method) -> bool:
    """Run a test as ``policy.choose`` decided, or fail it with the reason of its refusal."""
    if not method.refusal:
        return run_isolated(item, nextitem, method=method.name, timeout=method.timeout)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    refused = failure.report(item, "setup", ChildError(method.refusal), [])
    item.ihook.pytest_runtest_logreport(report=refused)
    _tear_down_here(item, nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _run(item: pytest.Item, replay: Replay, method: str, timeout: float | None) -> None:
    """Run the child and replay it; a child that cannot be had is a failed set-up."""
    try:
        running = _start(item, method)
    except (ChildError, OSError, RuntimeError) as error:
        # RuntimeError: CudaForkError, the guard's refusal, and "can't start new thread"
        text = f"no process could be started for this test by {method}: {error}"
        replay.fail("setup", ChildError(text))
        return
    supervisor = supervise.Supervisor(running, timeout, replay.take)
    try:
        ending = supervisor.watch()
    except pytest.fail.Exception as error:
        # pytest-timeout fails the test from a signal handler, wherever this process is
        replay.add_output()
        replay.fail(
            failure.next_phase(replay.reports),
            ChildTimeout(f"the process of this test was killed, because of: {error.msg}"),
        )
        return
    finally:
        if method == "fork":
            replay.empty_shared_capture()
    phase = failure.next_phase(replay.reports)
    trouble = replay.trouble or failure.error_of(ending, phase, timeout)
    if trouble is not None:
        replay.add_output()
        replay.fail(phase, trouble, ending.seconds)


def _start(item: pytest.Item, method: str) -> launch.Running:
    config = item.config
    basetemp = _basetemp(config)
    if method == "fork":
        return launch.start_fork(
            lambda channel, stacks_fd: child_session.run_forked(item, channel, stacks_fd)
        )
    request = {**launch.base_request("session"), **_session_request(item, basetemp)}
    if method == "spawn":
        return launch.start_spawn(request)
    return server_of(config).start_child(request)


def _basetemp(config: pytest.Config) -> str:
    """Make the session's temporary directory now: a child would make one of its own."""
    factory = getattr(config, "_tmp_path_factory", None)
    return "" if factory is None else str(factory.getbasetemp())


def _session_request(item: pytest.Item, basetemp: str) -> dict[str, Any]:
    """Return what a child needs to make a session as this one and find the test in it."""
    config = item.config
    options = dict(vars(config.option))
    options.pop("file_or_dir", None)
    options["rootdir"] = str(config.rootpath)
    # without an ini file here the child must not find another one
    options["inifilename"] = str(config.inipath or os.devnull)
    options["basetemp"] = None
    options["log_file_mode"] = "a"
    if options.get("maxfail"):
        options["maxfail"] = max(1, options["maxfail"] - item.session.testsfailed)
    pickled = {}
    for name, value in options.items():
        try:
            pickled[name] = pickle.dumps(value)
        except Exception:  # an object some plugin keeps there; its default has to do
            continue
    return {
        "options": pickled,
        "args": [str(arg) for arg in config.args],
        "invocation_dir": str(config.invocation_params.dir),
        "identity": list(blackbox.identity(item)),
        "target": _target(item),
        "basetemp": basetemp,
        "workerinput": wire.plain(getattr(config, "workerinput", None)),
    }


def _target(item: pytest.Item) -> str:
    """Return what to collect for a test: its function where the name is plain, else its file."""
    path, *names = blackbox.identity(item)
    plain = all(part.isidentifier() for part in (name.partition("[")[0] for name in names))
    if not plain or "[" in path or "::" in path or not isinstance(item, pytest.Function):
        return path
    return "::".join([path, *(name.partition("[")[0] for name in names)])


class Replay:
    """Turns a child's messages into the hook calls that the test would have made here."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._capture_fds: list[int] = []
        self._stop: BaseException | None = None
        self._output: list[tuple[str, str]] = []
        self.reports: list[pytest.TestReport] = []
        self.trouble: ChildError | None = None

    def take(self, message: wire.Message, fds: list[int]) -> bool:
        """Handle one message; True for the last.

        Raises:
            WireError: It is not what a message of its kind should be.

        """
        kind = message["kind"]
        self._capture_fds += fds
        try:
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
        return False

    def _take_other(self, kind: str, message: wire.Message) -> bool:
        session = self._item.session
        if kind == "done":
            session.shouldstop = session.shouldstop or message["shouldstop"]
            session.shouldfail = session.shouldfail or message["shouldfail"]
            return True
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
        return False

    def _load_report(self, data: Any) -> pytest.TestReport:
        config = self._item.config
        kwargs = data.get("_subtest.context", {}).get("kwargs", {})
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        if not isinstance(report, pytest.TestReport):
            raise TypeError(f"no report of a test: {type(report).__name__}")
        report.nodeid = self._item.nodeid  # it may differ outside the root directory
        if kwargs and hasattr(report, "context"):
            # pytest 9 takes the repr of these once more on the way back: i='1' for i=1
            object.__setattr__(report.context, "kwargs", kwargs)
        return report

    def _log(self, report: pytest.TestReport) -> None:
        if type(report) is pytest.TestReport:
            self.reports.append(report)
        else:  # a subtest's report ends no phase
            _count_failed_subtest(self._item.config, report)
        self._item.ihook.pytest_runtest_logreport(report=report)

    def fail(self, phase: failure.Phase, error: ChildError, seconds: float = 0.0) -> None:
        """Report a failure that the child could not report."""
        self._log(failure.report(self._item, phase, error, self._output, seconds))

    def add_output(self) -> None:
        """Add what the dead child had written, and nobody has read, to the failure's sections."""
        phase = failure.next_phase(self.reports)
        for fd, name in zip(self._capture_fds, ("stdout", "stderr"), strict=False):
            text = os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
            if text:
                self._output.append((f"Captured {name} {phase}", text))

    def empty_shared_capture(self) -> None:
        """Drop what a forked child left in this process's capture files, which it shares.

        Else the next test would be shown the output.
        """
        manager: Any = self._item.config.pluginmanager.get_plugin("capturemanager")
        if getattr(manager, "_global_capturing", None) is not None:
            self._keep_output()
            manager.read_global_capture()

    def _keep_output(self) -> None:
        """Read the output before the files are emptied."""
        self.add_output()
        self.close()

    def raise_stop(self) -> None:
        """Stop this session if the test stopped the child's."""
        if self._stop is not None:
            raise self._stop

    def close(self) -> None:
        """Close the descriptors that came with messages."""
        while self._capture_fds:
            os.close(self._capture_fds.pop())


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
