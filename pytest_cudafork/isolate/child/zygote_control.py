"""Owns the zygote's children and its connection to the parent: forking, handing over, reaping.

Runs in the zygote, imports nothing of the parent side, and does not know what the children run.

The control socket (``SOCK_SEQPACKET``) carries, from the zygote: ``ready`` with what it is (JSON,
see ``Control.send_ready``); ``child PID COOKIE`` with the descriptors of its channel and its
stacks; ``exit PID CODE`` (negative: signal) once that child and its process group are gone;
``error TEXT`` where no child could be forked; ``done`` when all that it had to do is done. From the
parent: ``next`` asks for a child,
``waiting`` says that it does nothing else. Its end is the zygote's end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import warnings
from typing import Any, NoReturn

from pytest_cudafork.isolate.child import items
from pytest_cudafork.process import child, cores, leftovers, template_memory, wire

_LONGEST_REQUEST = 64
_LONGEST_TEXT = 2000
_BUSY_CORES = 2
"""The parent and the child at work have one each."""
_MOST_AHEAD = 3
"""A child takes longer to get ready than a trivial test runs."""
_IDLE_MS = 3
_FORKS_PER_STEP = 12
"""A step takes longer than a fork, and each makes every later one a little cheaper."""
_FORKS_PER_LOOK = 256
_MOST_GROWTH = 2.0
_GROWTH_BYTES = 256 << 20
"""A zygote that holds this much more than twice what it began with is replaced."""


class Control:
    """The zygote's end of the connection to the parent, and its children."""

    def __init__(self, sock: socket.socket, stdout: int, stderr: int) -> None:
        self._sock = sock
        self._parent = os.getppid()
        self.outputs = (stdout, stderr)
        """The parent's standard output and error."""
        self._pidfds: dict[int, int] = {}
        """Process id of each child by its pidfd."""
        self._memory: template_memory.Collapse | None = None
        self._forks = 0
        self._first_size = 0
        self._worn_out = False
        self._ahead = min(_MOST_AHEAD, max(1, cores.usable() - _BUSY_CORES + 1))
        self.spare_cores = self._ahead > 1
        """Whether children that wait can use a core that nobody else needs."""
        self._quiet = warnings.catch_warnings()
        self._cookies: dict[int, bytes] = {}
        """Cookie of each child by its process id."""

    def send_ready(self, blame: dict[str, str] | None, tests: int, errors: list[str]) -> None:
        """Tell the parent what this process is."""
        about = {
            "blame": blame,
            "tests": tests,
            "errors": [text[:_LONGEST_TEXT] for text in errors],
        }
        self._sock.send(
            b"ready " + json.dumps(about, ensure_ascii=False).encode("utf-8", "replace")
        )

    def send(self, word: str, /) -> None:
        """Tell the parent one word; where it is gone, nobody."""
        with contextlib.suppress(OSError):
            self._sock.send(word.encode("ascii"))

    def use_spare_time(self) -> None:
        """Fold memory for as long as the parent does not wait for this process."""
        self._memory = template_memory.Collapse()
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        while self._can_fold and not poller.poll(0):
            self._fold()

    @property
    def _can_fold(self) -> bool:
        return self._memory is not None and not self._memory.done

    def _fold(self) -> None:
        if self._memory is not None and not self._memory.done:
            self._memory.step()

    def serve(self, run: Any) -> None:
        """Fork children ahead of their time until the parent closes the connection."""
        child.die_with_parent(False)  # it notices by itself, and ends the children's groups first
        # The threads that remain belong to libraries that know how to be forked. Entered once, not
        # for each fork: a child begins with copying what was written since the last.
        self._quiet.__enter__()
        warnings.filterwarnings("ignore", ".*use of fork\\(\\)", DeprecationWarning)
        self._first_size = template_memory.resident_bytes()
        for _ in range(self._ahead):
            self._fork(run)
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        known: set[int] = set()
        while True:
            for fd in self._pidfds.keys() - known:
                poller.register(fd, select.POLLIN)
                known.add(fd)
            events = poller.poll(_IDLE_MS if self._can_fold else None)
            if not events:
                self._fold()
            for fd, _ in events:
                if fd in self._pidfds:
                    poller.unregister(fd)
                    known.discard(fd)
                    self._reap(fd)
                    # the parent starts another zygote when this one is gone
                    gone = self._worn_out and not self._pidfds
                else:
                    gone = not self._next(run)
                if gone:
                    self._end()
                    child.die_with_parent()
                    if os.getppid() != self._parent:  # it was killed: no session to finish
                        os._exit(child.EXIT_LOST)
                    return

    def _next(self, run: Any) -> bool:
        """Do what the parent asks; False when it is gone."""
        try:
            request = self._sock.recv(_LONGEST_REQUEST)
        except ConnectionError:
            return False
        if request == b"next" and not self._worn_out:
            self._fork(run)
            self._forks += 1
            if self._forks % _FORKS_PER_STEP == 0:
                self._fold()
            if self._forks % _FORKS_PER_LOOK == 0:
                limit = self._first_size * _MOST_GROWTH + _GROWTH_BYTES
                self._worn_out = template_memory.resident_bytes() > limit
        return bool(request)

    def _fork(self, run: Any) -> None:
        """Fork a child that waits for its work, and hand it to the parent."""
        ours, theirs = socket.socketpair()
        cookie = wire.new_cookie()
        stacks = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                self._quiet.__exit__(None, None, None)
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

    def _become_child(self, sock: socket.socket, stacks: int, cookie: bytes, run: Any) -> NoReturn:
        status = child.EXIT_LOST
        channel = None
        try:
            self._sock.close()
            for fd in self._pidfds:
                os.close(fd)
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
                    channel.send("internal", text=items.text_of(error))
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
