"""Owns the zygote: a process that has a session as the parent's and forks a child for each test.

It was started by exec, early, so that its imports overlap the parent's collection. It collects what
the parent collects, is proven free of CUDA and of threads, is frozen, and keeps one child forked
ahead. Runs in that process, imports nothing of the parent side, and does not know which test a
child will run.

The control socket (``SOCK_SEQPACKET``) carries, from the zygote: ``ready`` with what it is (JSON,
see ``_describe``); ``child PID`` with the descriptors of its channel and its stacks; ``exit PID
CODE`` (negative: signal) once that child and its process group are gone; ``error TEXT`` where no
child could be forked. From the parent: ``next`` asks for a child. Its end is the zygote's end.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import warnings
from typing import Any, NoReturn

import pytest

from pytest_cudafork.isolate import (
    child,
    child_items,
    child_session,
    coverage_data,
    leftovers,
    randomness,
    template_memory,
    wire,
)
from pytest_cudafork.state import current_state

_LONGEST_REQUEST = 64
_MOST_ERRORS = 20
_LONGEST_TEXT = 2000
_REHEARSALS = 20
"""How often to rehearse: after about ten times the interpreter has specialized its bytecode."""


class Template(child_session.WorkSession):
    """The session of the zygote: it collects, then forks."""

    def __init__(self, request: dict[str, Any], cwd: int, control: Control) -> None:
        super().__init__(request, cwd)
        self._control = control
        self._left_out = frozenset(request["left_out"])
        self._randomness = randomness.Randomness()
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
        self._stop_capture(session.config)
        if self.coverage is not None:
            self._measured = self.coverage.take()
            self._first = coverage_data.Once()
        # everything that is the same for every child is done here, once
        reporter = child_items.Reporter(session.config)
        session.config.pluginmanager.register(reporter)
        reporter.take_over(session)
        server = child_items.ItemServer(reporter, self.items, self.errors)
        server.rehearse(_REHEARSALS)
        template_memory.freeze()
        self._control.send_ready(None, len(self.items), self.errors[:_MOST_ERRORS])
        self._control.serve(lambda channel, stacks: self._run(session, server, channel, stacks))

    def _stop_capture(self, config: pytest.Config) -> None:
        """End the capture of this process's output: each child captures its own."""
        manager = config.pluginmanager.get_plugin("capturemanager")
        if manager is not None and manager.is_globally_capturing():
            manager.stop_global_capturing()
            self._captures = True

    _captures = False
    _measured: dict[str, Any] | None = None
    _first: coverage_data.Once | None = None

    def _run(
        self,
        session: pytest.Session,
        server: child_items.ItemServer,
        channel: child.Channel,
        stacks_fd: int,
    ) -> None:
        """Run tests in a child."""
        self._randomness.renew()
        if self._captures:
            manager: Any = session.config.pluginmanager.get_plugin("capturemanager")
            manager.start_global_capturing()
            manager.suspend_global_capture()
        child.arm_stacks(stacks_fd)
        server.rehearse(1)  # copies the pages that a test writes to, before there is one
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


class Control:
    """The zygote's end of the connection to the parent, and its children."""

    def __init__(self, sock: socket.socket, stdout: int, stderr: int) -> None:
        self._sock = sock
        self._outputs = ((stdout, 1), (stderr, 2))
        self._pidfds: dict[int, int] = {}
        """Process id of each child by its pidfd."""
        self._cookies: dict[int, bytes] = {}
        """Cookie of each child by its process id."""

    def send_ready(self, blame: dict[str, str] | None, tests: int, errors: list[str]) -> None:
        """Tell the parent what this process is."""
        about = {
            "blame": blame,
            "tests": tests,
            "errors": [text[:_LONGEST_TEXT] for text in errors],
        }
        self._sock.send(b"ready " + json.dumps(about).encode())

    def serve(self, run: Any) -> None:
        """Fork children ahead of their time until the parent closes the connection."""
        child.die_with_parent(False)  # it notices by itself, and ends the children's groups first
        self._fork(run)
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        known: set[int] = set()
        memory = template_memory.Collapse()
        while True:
            for fd in self._pidfds.keys() - known:
                poller.register(fd, select.POLLIN)
                known.add(fd)
            events = poller.poll(None if memory.done else 0)
            if not events:
                memory.step()
            for fd, _ in events:
                if fd in self._pidfds:
                    poller.unregister(fd)
                    known.discard(fd)
                    self._reap(fd)
                elif not self._next(run):
                    self._end()
                    return

    def _next(self, run: Any) -> bool:
        """Do what the parent asks; False when it is gone."""
        try:
            request = self._sock.recv(_LONGEST_REQUEST)
        except ConnectionError:
            return False
        if request == b"next":
            self._fork(run)
        return bool(request)

    def _fork(self, run: Any) -> None:
        """Fork a child that waits for its work, and hand it to the parent."""
        ours, theirs = socket.socketpair()
        cookie = wire.new_cookie()
        stacks = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)
        try:
            with warnings.catch_warnings():
                # the threads that remain belong to libraries that know how to be forked
                warnings.filterwarnings("ignore", ".*use of fork\\(\\)", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                ours.close()
                self._become_child(theirs, stacks, cookie, run)
            with contextlib.suppress(OSError):  # the child may have done it, or be gone
                os.setpgid(pid, pid)
            self._pidfds[os.pidfd_open(pid)] = pid
            self._cookies[pid] = cookie
            text = f"child {pid} {cookie.hex()}"
            socket.send_fds(self._sock, [text.encode()], [ours.fileno(), stacks])
        except (OSError, RuntimeError) as error:  # no memory, no processes; or the fork guard
            with contextlib.suppress(OSError):
                self._sock.send(f"error {type(error).__name__}: {error}".encode()[:_LONGEST_TEXT])
        finally:
            ours.close()
            theirs.close()
            os.close(stacks)

    def _become_child(
        self, sock: socket.socket, stacks: int, cookie: bytes, run: Any
    ) -> NoReturn:
        status = child.EXIT_LOST
        channel = None
        try:
            self._sock.close()
            for fd in self._pidfds:
                os.close(fd)
            for source, target in self._outputs:
                os.dup2(source, target)
                os.close(source)
            child.forget_parent_exit_work()
            child.prepare(stacks)
            leftovers.wear(cookie)
            channel = child.Channel(sock, cookie)
            run(channel, stacks)
            status = 0
        except BaseException as error:
            if channel is not None:
                channel.leave_if_not_mine()
                with contextlib.suppress(OSError):
                    channel.send("internal", text=child_items.text_of(error))
                    channel.send("over", last=True, shouldstop=False, shouldfail=False)
        finally:
            if channel is not None:
                channel.leave_if_not_mine()
            child.leave(status, channel)

    def _reap(self, pidfd: int) -> None:
        """Clear away a dead child, with what is left of its process group.

        After a crash the parent ends its descendants, by their mark: some of them tidy up first.
        """
        pid = self._pidfds.pop(pidfd)
        died = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        cookie = self._cookies.pop(pid)
        well = died is not None and died.si_code == os.CLD_EXITED and died.si_status == 0
        if well or not leftovers.wears(pid, cookie):
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # the parent is gone; the next round sees it
            self._sock.send(f"exit {pid} {os.waitstatus_to_exitcode(status)}".encode())

    def _end(self) -> None:
        """End all children; the one that waits for work ends with this."""
        for pid in self._pidfds.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        leftovers.end({cookie: pid for pid, cookie in self._cookies.items()})
        for pidfd, pid in self._pidfds.items():
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)  # one that hangs in the kernel is left to init
            os.close(pidfd)
        self._pidfds.clear()
        self._cookies.clear()


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
    try:
        control = Control(sock, stdout, stderr)
        child_session.run_pytest(request, lambda cwd: Template(request, cwd, control))
        status = 0
    except BaseException as error:
        sys.stderr.write(child_items.text_of(error))
    finally:
        child.leave(status)
