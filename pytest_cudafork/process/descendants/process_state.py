"""What the kernel says of a process: whether it lives, and whether it is stopped."""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, io, os, signal

_DEAD = ("", "Z", "X")
_STOPPED = "T"


def state_of(pid: int) -> str:
    """Return the letter of a process's state, as ``ps`` shows it; "" if there is no such one."""
    return "".join(_facts(pid)[:1])


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if there is no such one."""
    return int("".join(_facts(pid)[1:2]) or 0)


def _facts(pid: int) -> list[str]:
    try:
        with io.open(f"/proc/{pid}/stat", "rb") as file:
            # the name of the program, in parentheses, may hold anything
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has reaped yet has."""
    return state_of(pid) not in _DEAD


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP); one that a debugger holds is not."""
    return state_of(pid) == _STOPPED


def wake(pid: int) -> None:
    """Continue a process if it is stopped."""
    if is_stopped(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
