"""Running a test once more, in a process of its own whose reports nobody but the caller sees.

What such a run does to fixtures, files of its own and state is gone with its process: it sets up
all of its fixtures anew, and changes nothing for this session or for the tests to come.
"""

from __future__ import annotations

import pytest

from pytest_cudafork.capture.rerun.orders import PROPERTY, Counted, Order
from pytest_cudafork.capture.rerun.verdict import Again
from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.errors import ChildError, CudaForkError
from pytest_cudafork.isolate import passed_phases, report_data
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session.children import Children
from pytest_cudafork.process import termination
from pytest_cudafork.process.fork_server_client import NoServerError
from pytest_cudafork.process.forking.short_stack import perform
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.server_process import ForkRefusedError
from pytest_cudafork.process.supervision import Said
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import CHILD_ENV, child_env, marks_of


class _Reports:
    """What a child says of a test; only its reports are of interest."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self.outcomes: dict[str, str] = {}
        self.counted = Counted()
        self.trouble = ""
        self.missing = False

    def take(self, message: messages.Message, fds: list[int]) -> Said:
        """Handle one message."""
        for fd in fds:
            os.close(fd)
        match message:
            case messages.Report():
                self._note(report_data.load(self._item, message.data))
            case messages.Passed():
                for report in passed_phases.reports_of(self._item, message.phases):
                    self._note(report)
            case messages.TestMissing():
                self.missing = True
            case messages.InternalError():
                self.trouble = message.text.strip().rpartition("\n")[2]
            case messages.SessionStop() | messages.Interrupt():
                self.trouble = "it ends the session"
            case messages.TestOver():
                return Said.LEAVING if message.last else Said.DONE
            case messages.Done():
                return Said.DONE
        return Said.MORE

    def _note(self, report: pytest.TestReport) -> None:
        if type(report) is not pytest.TestReport:  # a subtest's
            if report.failed:
                self.outcomes["call"] = "failed"
            return
        if self.outcomes.get(report.when) != "failed":
            self.outcomes[report.when] = report.outcome
        for name, text in report.user_properties:
            if name == PROPERTY:
                self.counted = Counted.read(str(text))


def run_again(item: pytest.Item, order: Order, children: Children, limit: float) -> Again:
    """Run a test once more with spoiled replays, and tell how it went.

    Args:
        item: the test.
        order: how its replays are to be spoiled.
        children: the session's.
        limit: seconds after which it is ended; it has not passed then.

    """
    termination.stop_time_limit(item)  # the test is over, as far as it counts
    before = item.stash.get(CHILD_ENV, {})
    item.stash[CHILD_ENV] = {**before, environment.REPLAYS: order.text()}
    try:
        with termination.sigterm_ends_session(item.nodeid), children.sigchld.kept():
            forked = None if _needs_interpreter(item) else _try(item, children, "forkserver", limit)
            return forked or _try(item, children, "spawn", limit) or Again(None, why=_LOST)
    finally:
        item.stash[CHILD_ENV] = before


_LOST = "a process of its own did not find the test"


def _needs_interpreter(item: pytest.Item) -> bool:
    marks = marks_of(item)
    return bool(marks.spawn_only or marks.env)


def _try(item: pytest.Item, children: Children, method: str, limit: float) -> Again | None:
    """Run it by one method; None: another one may do."""
    if method == "forkserver" and children.why_not_forked(item) is not None:
        return None
    reports = _Reports(item)
    try:
        process = perform(children.process_for(item, None, Method(method, limit)))
    except (NoServerError, ForkRefusedError):
        return None
    except (ChildError, CudaForkError, OSError, RuntimeError) as error:
        return Again(None, why=f"no process could be started to run it once more: {error}")

    def take(message: messages.Message, fds: list[int]) -> Said:
        said = reports.take(message, fds)
        if getattr(message, "wait", False):
            process.order(messages.Shown())
        return said

    with contextlib.ExitStack() as undo:
        undo.callback(process.close)
        whole = bool(child_env(item).keys() - {environment.REPLAYS})
        ending = process.supervisor.watch(take, limit, until_done=not whole)
        if ending is None:
            undo.pop_all()
            children.keep(process, None)
    return None if reports.missing else _judged(reports)


def _judged(reports: _Reports) -> Again:
    outcomes, counted = reports.outcomes, reports.counted
    if reports.trouble:
        return Again(None, counted, f"run once more, {reports.trouble}")
    if outcomes.get("setup", "passed") == "failed":
        return Again(None, counted, "run once more, its fixtures cannot be set up")
    if "skipped" in outcomes.values():
        return Again(None, counted, "run once more, it is skipped")
    passed = [outcomes.get(phase) for phase in ("setup", "call", "teardown")] == ["passed"] * 3
    if not passed and "call" in outcomes and not counted.replays:
        return Again(None, counted, "run once more, it fails before it replays a graph")
    return Again(passed, counted)
