"""Owns one child of the template: its descriptors, its beginning, and how it ended.

Runs in the template. It does not know what the module is imported for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from pytest_cudafork.imports import importer
from pytest_cudafork.isolate import child, last_words, leftovers
from pytest_cudafork.isolate.wire import new_cookie

_MOST_OUTPUT = 2000
_DYING_SECONDS = 5.0


class Job:
    """The import of one module in a forked process."""

    def __init__(self, module: str, timeout: float) -> None:
        self.module = module
        self.deadline = time.monotonic() + timeout
        self.timed_out = False
        self.over_memory = False
        self.pid = 0
        self.pidfd = -1
        self._asked = 0.0
        self._cookie = new_cookie()
        self._fds = [
            os.memfd_create(f"pytest-cudafork-{name}", os.MFD_CLOEXEC)
            for name in ("report", "output", "stacks")
        ]

    def start(self, private: Iterable[int], body: Callable[[Job], NoReturn]) -> None:
        """Fork, close ``private`` descriptors in the child, and run ``body`` there.

        Raises:
            OSError: There is no process left.

        """
        pid = os.fork()
        if pid == 0:
            self._become_child(private, body)
        self.pid = pid
        with contextlib.suppress(OSError):  # the child may have done it, or be gone
            os.setpgid(pid, pid)
        self.pidfd = os.pidfd_open(pid)

    def _become_child(self, private: Iterable[int], body: Callable[[Job], NoReturn]) -> NoReturn:
        try:
            for fd in private:
                os.close(fd)
            child.forget_parent_exit_work()
            child.prepare(self._fds[2])
            leftovers.wear(self._cookie)
            os.dup2(self._fds[1], 1)
            os.dup2(self._fds[1], 2)
            body(self)
        finally:
            os._exit(child.EXIT_LOST)

    def report(self, told: importer.Told) -> None:
        """Say how it went; in the child."""
        with contextlib.suppress(OSError):  # the module has closed it
            os.pwrite(self._fds[0], importer.encode(told), 0)

    def end(self) -> None:
        """Make the child write its stacks and die; called again, kill it if it does not."""
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            if last_words.ask(self.pid):
                return
            self.kill()
        elif now - self._asked > _DYING_SECONDS:
            self.kill()

    def kill(self) -> None:
        """End the child now."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def finish(self, sweeper: leftovers.Sweeper) -> dict[str, Any]:
        """Clear away the dead child with all that it left; return what is known of it."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        sweeper.add(self._cookie, self.pid)
        told = importer.decode(_read(self._fds[0]))
        text = {
            name: _read(fd, _MOST_OUTPUT).decode("utf-8", "replace").strip()
            for name, fd in (("output", self._fds[1]), ("stacks", self._fds[2]))
        }
        for fd in (*self._fds, self.pidfd):
            os.close(fd)
        return {
            "module": self.module,
            "pid": self.pid,
            "status": code,
            "timed_out": self.timed_out,
            "over_memory": self.over_memory,
            "told": None if told is None else told._asdict(),
            **text,
        }


def _read(fd: int, most: int = 0) -> bytes:
    """Return what is in a memory file, or its end."""
    size = os.fstat(fd).st_size
    start = max(0, size - most) if most else 0
    return os.pread(fd, size - start, start)
