"""Descriptors that a watched program must not take for its own.

A program that was started without stdin, stdout or stderr opens files under their numbers, and what
it writes to such a stream without one has to fail as it would.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import fcntl, os

LAST_STREAM = 2


def above_the_streams(fd: int) -> int:
    """Return the descriptor under a number that is no stream's; a lower one is closed.

    Raises:
        OSError: None is left.

    """
    if fd > LAST_STREAM:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LAST_STREAM + 1)
    finally:
        os.close(fd)
