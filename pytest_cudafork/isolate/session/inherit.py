"""Running the body of one test in a child, with fixtures that are set up and torn down here.

What the body says comes home as from a whole test in a child. By "fork" the fixtures are there as
they are. By the other methods the values that the body takes are sent, with the attributes of its
instance and of its class; the fixtures of pytest itself that belong to a process (capsys, caplog,
monkeypatch, request, ...) are set up there anew. Not covered then: what fixtures and
``setup_module`` have changed elsewhere in this process, as globals.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals, pytest_reports, standard_library
from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate import policy
from pytest_cudafork.isolate.child.inherited import SHOWS_WARNINGS
from pytest_cudafork.isolate.session import heard_reports, other_plugins, report_checks
from pytest_cudafork.isolate.session.children import Children
from pytest_cudafork.isolate.session.replay import Replay
from pytest_cudafork.isolate.session.request import INHERITED
from pytest_cudafork.isolate.session.run_test import run_child
from pytest_cudafork.process import termination
from pytest_cudafork.process.forking.short_stack import Steps
from pytest_cudafork.process.protocol import frames

_OF_THE_PROCESS = (
    "_pytest",
    "pytest_cudafork",
    "pytest_asyncio",
    "pytest_mock",
    "pytest_subtests",
)
"""Packages whose fixtures are of the process that the body runs in, but for those below."""
_SENT = ("tmp_path", "tmpdir", "doctest_namespace")
_LEFT = "teardown in the process of the body"
_XUNIT = "xunit_setup"
"""What is in the names of pytest's own fixtures for ``setup_module`` and its like."""


def checked(item: pytest.Item, method: policy.Method) -> policy.Method:
    """Return how to run the body of a test; refused where it has none apart from its fixtures."""
    if isinstance(item, pytest.Function) and not standard_library.is_unittest(item.cls):
        return method
    return replace(
        method,
        refusal=(
            "fixtures='inherit' is for test functions and for methods of plain classes: what a "
            "method of unittest does is kept by the object that runs it, which another process "
            "does not have. Leave it out: then setUp and tearDown run in the test's process, too."
        ),
    )


def isolate_body(
    item: pytest.Item,
    nextitem: pytest.Item | None,
    method: policy.Method,
    children: Children,
) -> Steps[None]:
    """Run a test's protocol with its body in a child; for ``pytest_runtest_protocol``.

    Args:
        item: The test.
        nextitem: The one that runs after it in this process.
        method: How; with a refusal, the test fails with it.
        children: The session's.

    Raises:
        pytest.exit.Exception: The test called ``pytest.exit``.
        KeyboardInterrupt: The test raised it, or it came here; the child is gone.

    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    replay = BodyReplay(item, method)
    if method.refusal:
        replay.refuse(ChildError(method.refusal))
    else:
        yield from _run(item, nextitem, replay, children)
        while replay.again:
            other_plugins.prepare_rerun(item, replay.runs)
            replay = BodyReplay(item, method)
            yield from _run(item, nextitem, replay, children)
    replay.conclude()
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    replay.raise_stop()


def _run(
    item: pytest.Item, nextitem: pytest.Item | None, replay: BodyReplay, children: Children
) -> Steps[None]:
    """Set up, have the body run, and tear down, as ``_pytest.runner.runtestprotocol`` does."""
    pytest_internals.begin_request(item)
    option = item.config.option
    shown_before = standard_library.what_shows_warnings()
    marks = list(item.own_markers)
    try:
        setup = replay.log_setup(pytest_internals.run_phase(item, "setup", log=False))
        if standard_library.what_shows_warnings() != shown_before:
            item.stash[SHOWS_WARNINGS] = standard_library.what_shows_warnings()
        if setup.passed:
            if getattr(option, "setupshow", False):
                pytest_internals.show_setup(item)
            if not getattr(option, "setuponly", False):
                yield from _run_body(item, replay, children, marks)
        if item.session.shouldfail or item.session.shouldstop or replay.again:
            nextitem = nextitem if replay.again else None
        teardown = pytest_internals.run_phase(item, "teardown", nextitem=nextitem, log=False)
        replay.log_teardown(teardown)
    finally:
        with contextlib.suppress(KeyError):
            del item.stash[SHOWS_WARNINGS]
        pytest_internals.end_request(item)


def _run_body(
    item: pytest.Item, replay: BodyReplay, children: Children, marks: Sequence[pytest.Mark]
) -> Steps[None]:
    try:
        item.stash[INHERITED] = b"" if replay.method.name == "fork" else pack(item, marks)
        with (
            termination.sigterm_ends_session(item.nodeid),
            termination.interrupted(item),
            children.sigchld.kept(),
        ):
            yield from run_child(item, None, replay, children)
    except ChildError as error:
        replay.refuse(error)
    finally:
        with contextlib.suppress(KeyError):
            del item.stash[INHERITED]


def pack(item: Any, marks: Sequence[pytest.Mark] | None = None) -> bytes:
    """Return what a child needs that shares nothing with this process, for the body of a test.

    ``marks`` are those that the test had before its fixtures were set up; None: all it has now.

    Raises:
        ChildError: A fixture that the body takes, or an attribute of its instance, does not
            pickle; it is named.

    """
    values: dict[str, bytes] = {}
    here: list[str] = []
    takes = pytest_internals.arguments_of(item)
    for name, value in item.funcargs.items():
        if _is_of_the_process(item, name):
            continue
        if name in takes or _is_plain(value):  # a plugin may look at it, as anyio does
            values[name] = _pickled(value, f"the fixture {name!r}")
        else:  # set up for what it does, here
            here.append(name)
    attributes = getattr(item.instance, "__dict__", {}) if item.cls is not None else {}
    return frames.dumps(
        {
            "values": values,
            "here": here,
            "self": {name: _pickled(one, f"self.{name}") for name, one in attributes.items()},
            "class": _class_attributes(item.cls),
            "path": [entry for entry in sys.path if type(entry) is str],
            "marks": [] if marks is None else list(_added_marks(item, marks)),
            "sections": [[*one] for one in pytest_reports.sections_of(item)],
        }
    )


def _added_marks(item: pytest.Item, before: Sequence[pytest.Mark]) -> Iterator[bytes]:
    """Yield the marks that fixtures have added, as an ``xfail``.

    What does not pickle is left out: it is a plugin's, for itself.
    """
    known = set(map(id, before))
    for mark in item.own_markers:
        if id(mark) not in known:
            with contextlib.suppress(ChildError):
                yield _pickled(mark, f"the mark {mark.name}")


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


def _is_of_the_process(item: pytest.Item, name: str) -> bool:
    if _XUNIT in name or name in _SENT:
        return False
    home = pytest_internals.home_of_fixture(item, name)
    return not home or home.partition(".")[0] in _OF_THE_PROCESS


def _class_attributes(case: type | None) -> dict[str, bytes]:
    """Return the values of a class as fixtures may have set them, as far as they pickle."""
    sent = {}
    for name, value in vars(case).items() if case is not None else ():
        plain = not callable(value) and not hasattr(value, "__get__")
        if plain and not (name.startswith("__") and name.endswith("__")) and name != "pytestmark":
            with contextlib.suppress(ChildError):
                sent[name] = _pickled(value, name)
    return sent


def _pickled(value: Any, name: str) -> bytes:
    from pytest_cudafork.process.protocol import exception_parts, unpicklable

    try:
        return exception_parts.dumps(value)
    except pytest_reports.ENDS_SESSION:
        raise
    except BaseException as error:  # pickling runs the object's own code, which may raise anything
        raise ChildError(
            f"{name} cannot be sent to the process of this test, because it does not pickle: "
            f"{unpicklable.reason(error, value)}. It is a {type(value).__module__}."
            f"{type(value).__qualname__}. With method='fork' it is there as it is; or pass a plain "
            "value from which the body makes its own; or leave out fixtures='inherit'."
        ) from error


class BodyReplay(Replay):
    """Turns the messages of a child that runs the body alone into this session's reports."""

    def __init__(self, item: pytest.Item, method: policy.Method) -> None:
        super().__init__(item, method)
        self._left: pytest.TestReport | None = None
        """The teardown of what the body has left to be undone, which is done where it runs."""

    @property
    def missing(self) -> report_checks.Phase | None:
        """The call, if it has not been reported: no other phase is the child's."""
        return "call" if super().missing == "call" else None

    def log_setup(self, report: pytest.TestReport) -> pytest.TestReport:
        """Report the set-up, which was done here."""
        self._log(report)
        return report

    def log_teardown(self, report: pytest.TestReport) -> None:
        """Report the teardown that was done here, and with it that of what the body has left."""
        left = self._left
        if left is not None and left.failed:
            if report.passed:
                report.outcome, report.longrepr = left.outcome, left.longrepr
            else:
                report.sections.append((_LEFT, left.longreprtext))
        self._item.ihook.pytest_runtest_logreport(report=report)

    def _log(self, report: pytest.TestReport) -> None:
        phase = type(report) is pytest.TestReport
        if phase and report.when == "teardown":
            pytest_reports.add_sections(self._item, report.sections)
            self._left = report
            return
        if phase and report.when == "call":
            # the teardown, which is reported here, tells of the whole test
            pytest_reports.add_sections(self._item, report.sections)
            mine = self._item.user_properties
            mine.extend(one for one in report.user_properties if one not in mine)
            report.user_properties = list(mine)
            heard_reports.hear(self._item, report)
        if phase and report.failed and self._may_rerun(report):
            report.outcome = "rerun"  # type: ignore[assignment]  # as pytest-rerunfailures says it
            self.again = True
        super()._log(report)

    def _may_rerun(self, report: pytest.TestReport) -> bool:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(getattr(crash, "message", report.longrepr))
        return not self.again and other_plugins.rerun_elsewhere(self._item, self.runs, text)

    def fail_or_rerun(self, phase: report_checks.Phase, error: ChildError, seconds: float) -> None:
        """Report the death of the child; ``again`` if the test gets another."""
        self.fail(phase, error, seconds)  # of a rerun all that is logged is asked

    def _close(self, death: pytest.TestReport) -> None:
        self._death = death
        self._log(death)
