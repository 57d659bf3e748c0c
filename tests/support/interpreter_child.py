"""A process that a server has forked, with what ``subprocess.Popen`` offers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from typing import IO, Any


class Child:
    """A child process that was forked from a server; to be used as a ``subprocess.Popen``."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None

    def poll(self) -> int | None:
        """Return the exit code if the process has ended; negative: the signal."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.

        """
        if self.returncode is None and timeout is not None:
            pidfd = os.pidfd_open(self.pid)
            try:
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                if not poller.poll(timeout * 1000):
                    raise subprocess.TimeoutExpired(list(self.args), timeout)
            finally:
                os.close(pidfd)
        code = self._reap(0)
        assert code is not None, "it was waited for"
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process."""
        self.send_signal(signal.SIGKILL)

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode
