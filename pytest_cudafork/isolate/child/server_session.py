"""The session of the fork server that isolated tests are forked from: it collects, then forks.

The server was started early, so that its imports overlap the parent's collection. It collects what
the parent collects, is proven free of CUDA and of threads, is frozen, and then forks a child for
each test, which finds the tests imported and everything that is the same for all of them done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from pytest_cudafork.check.state import current_state
from pytest_cudafork.compat.unpatched import threading
from pytest_cudafork.health.plugin import prepare_for_shared_processes
from pytest_cudafork.isolate import coverage_data
from pytest_cudafork.isolate.child import capture_files, items, pytest_session, rehearsal
from pytest_cudafork.process import child, fork_server, randomness
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol.server_messages import CannotFork

_MOST_ERRORS = 20
_LONGEST_TEXT = 2000
_REHEARSALS = 20
"""How often to rehearse: after about ten times the interpreter has specialized its bytecode."""


def prepare(server: fork_server.ForkServer) -> None:
    """Collect what the parent collects, and serve."""
    seeds = randomness.Randomness()  # before the first conftest is imported
    request = server.settings.data
    try:
        pytest_session.run_pytest(
            request, lambda cwd: CollectedSession(request, cwd, server, seeds)
        )
    except pytest.UsageError as error:
        # A test that was named is not there, or a conftest says so. As a rule the parent's session
        # ends with the same words: no reason to tell of this process's end as well.
        text = "; ".join(map(str, error.args)).replace("\n", " ")[:_LONGEST_TEXT]
        server.ready(CannotFork("", "start", f"the fork server could not collect: {text}"))
    except pytest_session.NoTemporaryFile as error:
        server.ready(CannotFork("", "start", f"the fork server could not begin: {error}"))


class CollectedTests(fork_server.Prepared):
    """The collected tests, ready to be run in children."""

    def __init__(
        self,
        session: pytest.Session,
        runner: items.ItemServer,
        outputs: tuple[int, int],
        seeds: randomness.Randomness,
        *,
        practice: bool,
    ) -> None:
        self.items = runner
        self._seeds = seeds
        self._practice = practice
        self._rehearsal = rehearsal.Rehearsal(session)
        self._rehearsal.run(_REHEARSALS)
        self._capture = capture_files.ForkedCapture(session.config, *outputs)
        self._measured: dict[str, Any] | None = None
        self._first: coverage_data.Once | None = None

    def add_coverage(self, measured: dict[str, Any] | None) -> None:
        """Let the children measure, and the first of them add what was measured here."""
        self._measured = measured
        self._first = coverage_data.Once()

    def begin_child(self, stacks_fd: int) -> None:
        """Give a child random numbers and a capture of its own, and rehearse a test."""
        self._seeds.renew()
        self._capture.renew()
        child.arm_stacks(stacks_fd)
        if self._practice:
            self._rehearsal.run(1)  # copies the pages that a test writes to, before there is one
        if self._first is not None:
            self.items.coverage = coverage_data.begin()
            if self.items.coverage is not None:
                self.items.coverage.first_adds(self._measured, self._first)

    def job_for(self, channel: Channel, stacks_fd: int) -> Callable[[], int]:
        """Run tests: which ones, the orders that come next say."""
        return functools.partial(items.run, self.items, channel)


class CollectedSession(pytest_session.WorkSession):
    """The session's plugin: it watches what the imports leave behind, and serves in the end."""

    def __init__(
        self,
        request: dict[str, Any],
        cwd: int,
        server: fork_server.ForkServer,
        seeds: randomness.Randomness,
    ) -> None:
        super().__init__(request, cwd)
        self._server = server
        self._left_out = frozenset(request["left_out"])
        self._seeds = seeds
        self._why_not: CannotFork | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Look what plugins and the first conftest files have left behind."""
        self._why_not = _why_it_cannot_fork("", {threading.main_thread()})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Watch what the import of a file leaves behind."""
        threads = set(threading.enumerate())
        report = yield
        if self._why_not is None:
            self._why_not = _why_it_cannot_fork(str(collector.path), threads)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> Any:
        """Leave out the files whose tests run elsewhere, because importing them leaves traces."""
        if str(module_path) in self._left_out:
            return _LeftOut.from_parent(parent, path=module_path)
        return None

    def work(self, session: pytest.Session) -> None:
        """Say what this process is; if it may be forked, fork until the parent has enough."""
        self._seeds.look()
        freeze_before_fork.OpenMP().pause()
        about = {
            "tests": len(self.items),
            "errors": [text[:_LONGEST_TEXT] for text in self.errors[:_MOST_ERRORS]],
        }
        why_not = self._why_not or _why_it_cannot_fork("", {threading.main_thread()})
        if why_not is not None:
            self._server.ready(why_not, **about)
            return
        measured = None if self.coverage is None else self.coverage.take()
        # everything that is the same for every child is done here, once
        runner = self.item_server(session)
        runner.look_up()
        runner.environment = child.environment({})
        prepare_for_shared_processes(session.config)
        tests = CollectedTests(
            session,
            runner,
            self._server.outputs,
            self._seeds,
            practice=self._server.spare_cores,
        )
        if self.coverage is not None:
            tests.add_coverage(measured)
        freeze_before_fork.freeze()
        self._server.serve(tests, **about)


class _LeftOut(pytest.Module):
    """A file that is not imported here."""

    def collect(self) -> list[Any]:
        """Return nothing."""
        return []


def _why_it_cannot_fork(path: str, threads_before: set[threading.Thread]) -> CannotFork | None:
    """Return why this process must not be forked, and which file did it; None if it may."""
    state = current_state()
    if state.verdict.value != "clean":
        return CannotFork(path, "cuda", f"CUDA is {state.verdict.value}: {state.why}")
    new = [one.name for one in threading.enumerate() if one not in threads_before]
    if new:
        return CannotFork(path, "threads", f"threads run ({', '.join(new[:5])})")
    return None
