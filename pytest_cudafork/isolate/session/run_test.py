"""Running one whole test in a child and replaying its reports here.

Covered: set-up, call and teardown; every report, section, warning, subtest, property and duration;
outcomes as they are; a crash, exit or hang as a failure of its phase; descendants. Not covered:
what the test changes in objects of this process, ``caplog`` sections of a phase that crashed,
descendants that left the child's process group when it ended by itself. With "spawn" and
"forkserver" also: fixtures of a wider scope are set up anew in the child, and plugins passed as
objects to ``pytest.main`` are not there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.pytest_reports import ENDS_SESSION
from pytest_cudafork.errors import ChildError, ChildTimeout, CudaForkError
from pytest_cudafork.isolate import policy
from pytest_cudafork.isolate.session import other_plugins
from pytest_cudafork.isolate.session.children import AfterNext, Children, ItemProcess, none_known
from pytest_cudafork.isolate.session.replay import Replay
from pytest_cudafork.process import termination
from pytest_cudafork.process.fork_server_client import NoServerError
from pytest_cudafork.process.forking.short_stack import Steps
from pytest_cudafork.process.server_process import ForkRefusedError
from pytest_cudafork.settings.markers import CHILD_ENV, WATCHER


def isolate(
    item: pytest.Item,
    nextitem: pytest.Item | None,
    method: policy.Method,
    children: Children,
    following: pytest.Item | None = None,
    after: AfterNext = none_known,
) -> Steps[None]:
    """Run a test's whole protocol in a child; for ``pytest_runtest_protocol``.

    Args:
        item: The test.
        nextitem: The one that runs after it in this process.
        method: How; with a refusal, the test fails with it.
        children: The session's.
        following: The next test that shares the child, if there is one.
        after: Tells which others do, so that the child may work ahead.

    Raises:
        pytest.exit.Exception: The test called ``pytest.exit``.
        KeyboardInterrupt: The test raised it, or it came here; the child is gone.

    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    replay = _replay_of(item, method)
    try:
        if method.refusal:
            replay.refuse(ChildError(method.refusal))
        else:
            with (
                termination.sigterm_ends_session(item.nodeid),
                termination.interrupted(item),
                children.sigchld.kept(),
            ):
                yield from run_child(item, following, replay, children, after)
                while replay.again:
                    other_plugins.prepare_rerun(item, replay.runs)
                    replay = _replay_of(item, method)
                    yield from run_child(item, following, replay, children, after)
        failed = _tear_down_here(item, nextitem)
    except ENDS_SESSION:
        replay.end_teardown()
        raise
    replay.end_teardown(failed)
    replay.conclude()
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    replay.raise_stop()


def _replay_of(item: pytest.Item, method: policy.Method) -> Replay:
    replay = Replay(item, method)
    replay.holds_teardown = pytest_internals.is_anything_set_up(item.session)
    return replay


def run_child(
    item: pytest.Item,
    following: pytest.Item | None,
    replay: Replay,
    children: Children,
    after: AfterNext = none_known,
) -> Steps[None]:
    """Run the child and replay it; a child that cannot be had is a failed set-up."""
    try:
        process = yield from _child_for(item, following, replay, children, after)
    except (ChildError, CudaForkError, OSError, RuntimeError) as error:
        # CudaForkError by its name: else the refusal would count as one that nobody hears of.
        # RuntimeError: "can't start new thread"
        text = f"no process could be started for this test by {replay.method.name}: {error}"
        replay.refuse(ChildError(text))
        return
    replay.capture_fds = process.capture_fds
    replay.number = process.tests
    replay.answer = process.order
    try:
        # with a test to follow in the same process there is no end to wait for
        whole = following is None and bool(item.stash.get(CHILD_ENV, {}))
        _let_look(item, process)
        limit = replay.method.timeout
        held = process.supervisor.held
        with held.kept():
            process.order_due()
            ending = process.supervisor.watch(replay.take, limit, until_done=not whole)
        if held.came and not replay.ahead:
            process.supervisor.kill()
            replay.goes_on = False
            held.strike()
        replay.goes_on = ending is None and (replay.trouble is not None or replay.missing is None)
        if ending is None and not replay.goes_on:  # it cannot be trusted with another test
            process.supervisor.kill()
        replay.end(ending)
    except pytest.fail.Exception as error:
        # pytest-timeout fails the test from a signal handler, wherever this process is
        replay.take_what_is_left()
        replay.add_output()
        replay.fail(
            replay.phase,
            ChildTimeout(f"the process of this test was killed, because of: {error.msg}"),
        )
        return
    finally:
        if process.forked and not process.tests:  # else it has files of its own
            replay.empty_shared_capture()
        if not replay.goes_on:
            process.close()
        else:
            process.works_ahead = replay.ahead
            children.keep(process, None if replay.last else following)


def _let_look(item: pytest.Item, process: ItemProcess) -> None:
    """Let who measures the test look at its process while it runs."""
    look, running = item.stash.get(WATCHER, None), process.supervisor.running
    process.supervisor.on_look = None if look is None else lambda: look(running.pid, running.cookie)


def _child_for(
    item: pytest.Item,
    following: pytest.Item | None,
    replay: Replay,
    children: Children,
    after: AfterNext,
) -> Steps[ItemProcess]:
    """Return a child for a test: a fresh interpreter, too, where the fork server gives none."""

    def ask() -> Steps[ItemProcess]:
        return children.process_for(item, following, replay.method, after)

    try:
        return (yield from _child_or_room(ask, children))
    except (NoServerError, ForkRefusedError) as error:
        replay.method = policy.instead_of_fork_server(replay.method, str(error))
        return (yield from _child_or_room(ask, children))


def _child_or_room(ask: Callable[[], Steps[ItemProcess]], children: Children) -> Steps[ItemProcess]:
    """Return a child, in the place of processes that no test has if there is room for no other."""
    try:
        return (yield from ask())
    except OSError:  # no process, memory or descriptor is left
        children.make_room()
    return (yield from ask())


def _tear_down_here(item: pytest.Item, nextitem: pytest.Item | None) -> pytest.TestReport | None:
    """Tear down the fixtures of this process that the next test does not need.

    Returns:
        The report of what that has raised, if anything.

    """
    session = item.session
    if session.shouldfail or session.shouldstop:
        nextitem = None
    if not pytest_internals.is_anything_set_up(session):
        return None
    other_plugins.prepare_report(item)
    with pytest_internals.teardown_captured(item):
        outcome = pytest.CallInfo.from_call(
            lambda: pytest_internals.tear_down(session, nextitem),
            when="teardown",
            reraise=ENDS_SESSION,
        )
    if outcome.excinfo is None:
        return None
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=outcome)
    return report
