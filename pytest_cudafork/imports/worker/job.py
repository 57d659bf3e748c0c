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

from pytest_cudafork.imports.values import import_result
from pytest_cudafork.process import child, hang_stacks, leftovers
from pytest_cudafork.process.shared_mailbox import Slate
from pytest_cudafork.process.wire import new_cookie

_MOST_OUTPUT = 2000
_BLOCK_BYTES = 512
_MOST_KEPT = 64 << 20
"""What a module may write before the start of it is forgotten; one of them writes for ever."""
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
        self.cookie = new_cookie()
        self._slate = Slate()
        self._leave = os._exit
        self._output = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)
        self._stacks = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)

    def start(self, private: Iterable[int], body: Callable[[Job], NoReturn]) -> None:
        """Fork, close ``private`` descriptors in the child, and run ``body`` there.

        Raises:
            OSError: There is no process left.

        """
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, private, body)
        self.pid = pid
        with contextlib.suppress(OSError):  # the child may have done it, or be gone
            os.setpgid(pid, pid)
        self.pidfd = os.pidfd_open(pid)

    def _become_child(
        self, parent: int, private: Iterable[int], body: Callable[[Job], NoReturn]
    ) -> NoReturn:
        try:
            for fd in private:
                os.close(fd)
            child.forget_parent_exit_work()
            child.prepare(self._stacks)
            leave_orphaned(parent)
            leftovers.wear(self.cookie)
            os.dup2(self._output, 1)
            os.dup2(self._output, 2)
            body(self)
        finally:
            self._leave(child.EXIT_LOST)

    def report(self, told: import_result.ImportResult) -> NoReturn:
        """Say how it went, and end; in the child."""
        self._slate.write(import_result.encode(told))
        self._leave(0)

    def forget_output(self) -> None:
        """Keep the output from filling the memory."""
        forget_start(self._output)

    def end(self) -> None:
        """Make the child write its stacks and die; called again, kill it if it does not."""
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            if hang_stacks.ask(self.pid):
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
        sweeper.add(self.cookie, self.pid)
        told = import_result.decode(self._slate.read())
        self._slate.close()
        text = {"output": last_text(self._output), "stacks": last_text(self._stacks)}
        for fd in (self._output, self._stacks, self.pidfd):
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


def leave_orphaned(parent: int) -> None:
    """End this process if its parent died before it could ask the kernel to die with it."""
    if os.getppid() != parent:
        os._exit(child.EXIT_LOST)


def last_text(fd: int) -> str:
    """Return the end of what is in a memory file; not what it begins with, where that is gone."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, _MOST_OUTPUT, max(0, size - _MOST_OUTPUT))
    return data.lstrip(b"\0").decode("utf-8", "replace").strip()


def forget_start(fd: int) -> None:
    """Give back a memory file's memory if it takes too much.

    Who writes to it goes on where it was, so that the file begins with a hole.
    """
    if os.fstat(fd).st_blocks * _BLOCK_BYTES > _MOST_KEPT:
        os.ftruncate(fd, 0)
