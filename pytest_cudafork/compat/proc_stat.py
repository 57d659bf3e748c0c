"""What the kernel says of a process, or of a thread, in its file ``stat`` of ``/proc``."""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import io, os

STATE, PARENT, STARTED, STACK = 0, 1, 19, 25
"""Places among the fields: the letter of the state, the parent, the start in ticks of the kernel's
clock, the address at which the stack begins."""
ENDED = ("Z", "X")
"""States of a process that has ended and was not reaped."""


def fields_of(path: str) -> list[str]:
    """Return the fields behind the name of the program; [] if there is no such process.

    The name, in parentheses, may hold anything.
    """
    try:
        with io.open(path, "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []


def field(path: str, place: int) -> str:
    """Return one of the fields; "" if it is not there."""
    return "".join(fields_of(path)[place : place + 1])


def is_there(pid: int) -> bool:
    """Whether there is a process of this number, be it one that nobody has reaped.

    No file is opened, so that a process without a descriptor left may ask.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
