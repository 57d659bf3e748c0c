"""Owns the zygote: a process that has a session as the parent's and forks a child for each test.

It was started by exec, early, so that its imports overlap the parent's collection. It collects what
the parent collects, is proven free of CUDA and of threads, is frozen, and then forks. Runs in that
process, imports nothing of the parent side, and does not know which test a child will run.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
from typing import Any, NoReturn

import pytest

from pytest_cudafork.check.state import current_state
from pytest_cudafork.isolate import coverage_data
from pytest_cudafork.isolate.child import (
    forked_capture,
    items,
    pytest_session,
    rehearsal,
    zygote_control,
)
from pytest_cudafork.process import child, leftovers, randomness, template_memory

_MOST_ERRORS = 20
_REHEARSALS = 20
"""How often to rehearse: after about ten times the interpreter has specialized its bytecode."""


class Template(pytest_session.WorkSession):
    """The session of the zygote: it collects, then forks."""

    def __init__(
        self,
        request: dict[str, Any],
        cwd: int,
        control: zygote_control.Control,
        remembered: randomness.Randomness,
    ) -> None:
        super().__init__(request, cwd)
        self._control = control
        self._left_out = frozenset(request["left_out"])
        self._randomness = remembered
        self._blame: dict[str, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Look what plugins and the first conftest files have left behind."""
        self._blame = _blame("", {threading.main_thread()})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Watch what the import of a file leaves behind."""
        threads = set(threading.enumerate())
        report = yield
        if self._blame is None:
            self._blame = _blame(str(collector.path), threads)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> Any:
        """Leave out the files whose tests run elsewhere, because importing them leaves traces."""
        return _LeftOut.from_parent(parent, path=module_path) if self._skips(module_path) else None

    def _skips(self, path: Any) -> bool:
        return str(path) in self._left_out

    def work(self, session: pytest.Session) -> None:
        """Say what this process is; if it may be forked, fork until the parent has enough."""
        self._randomness.look()
        template_memory.OpenMP().pause()
        blame = self._blame or _blame("", {threading.main_thread()})
        if blame is not None:
            self._control.send_ready(blame, len(self.items), self.errors[:_MOST_ERRORS])
            return
        if self.coverage is not None:
            self._measured = self.coverage.take()
            self._first = coverage_data.Once()
        # everything that is the same for every child is done here, once
        reporter = items.Reporter(session.config)
        session.config.pluginmanager.register(reporter)
        reporter.take_over(session)
        server = items.ItemServer(reporter, self.items, self.errors)
        server.look_up()
        server.environment = child.environment({})
        practice = rehearsal.Rehearsal(session)
        practice.run(_REHEARSALS)
        capture = forked_capture.ForkedCapture(session.config, *self._control.outputs)
        template_memory.freeze()
        self._control.use_spare_time()
        self._control.send_ready(None, len(self.items), self.errors[:_MOST_ERRORS])
        self._control.serve(
            lambda channel, stacks: self._run(server, capture, practice, channel, stacks)
        )

    _measured: dict[str, Any] | None = None
    _first: coverage_data.Once | None = None

    def _run(
        self,
        server: items.ItemServer,
        capture: forked_capture.ForkedCapture,
        practice: rehearsal.Rehearsal,
        channel: child.Channel,
        stacks_fd: int,
    ) -> None:
        """Run tests in a child."""
        self._randomness.renew()
        capture.renew()
        child.arm_stacks(stacks_fd)
        if self._control.spare_cores:
            practice.run(1)  # copies the pages that a test writes to, before there is one
        if self.coverage is not None:
            server.coverage = coverage_data.begin()
            if server.coverage is not None:
                server.coverage.first_adds(self._measured, self._first)
        server.serve(channel)


class _LeftOut(pytest.Module):
    """A file that is not imported here."""

    def collect(self) -> list[Any]:
        """Return nothing."""
        return []


def _blame(path: str, threads_before: set[threading.Thread]) -> dict[str, str] | None:
    """Return why this process must not be forked, and which file is to blame; None if it may."""
    state = current_state()
    if state.verdict.value != "clean":
        return {"path": path, "kind": "cuda", "text": f"CUDA is {state.verdict.value}: {state.why}"}
    new = [one.name for one in threading.enumerate() if one not in threads_before]
    if new:
        return {"path": path, "kind": "threads", "text": f"threads run ({', '.join(new[:5])})"}
    return None


def main() -> NoReturn:
    """Start from the command line: control, request, standard output, standard error."""
    control_fd, request_fd, stdout, stderr = (int(text) for text in sys.argv[1:5])
    for fd in (control_fd, request_fd, stdout, stderr):
        os.set_inheritable(fd, False)
    gc.disable()  # until everything is imported
    child.die_with_parent()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is the parent's business
    sock = socket.socket(fileno=control_fd)
    request = child.read_request(request_fd)
    leftovers.wear(request["cookie"])
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    status = child.EXIT_LOST
    control: zygote_control.Control | None = None
    try:
        control = zygote_control.Control(sock, stdout, stderr)
        remembered = randomness.Randomness()  # before the first conftest is imported
        made = control
        pytest_session.run_pytest(request, lambda cwd: Template(request, cwd, made, remembered))
        status = 0
    except BaseException as error:
        sys.stderr.write(items.text_of(error))
    finally:
        child.leave(status, control)
