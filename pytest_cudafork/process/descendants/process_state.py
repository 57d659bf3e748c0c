"""What the kernel says of a process: whether it lives or is stopped, since when, what it runs."""

from __future__ import annotations

from pytest_cudafork.compat import proc_stat
from pytest_cudafork.compat.unpatched import contextlib, io, os, signal, time

_STOPPED = "T"
_TICKS = os.sysconf("SC_CLK_TCK")


def state_of(pid: int) -> str:
    """Return the letter of a process's state, as ``ps`` shows it; "" if there is no such one."""
    return _field(pid, proc_stat.STATE)


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if there is no such one."""
    return int(_field(pid, proc_stat.PARENT) or 0)


def started_at(pid: int) -> float:
    """Return when a process was started, in seconds since the machine's start; 0: no such one."""
    return int(_field(pid, proc_stat.STARTED) or 0) / _TICKS


def monotonic_of(started: float) -> int:
    """Return a time since the machine's start as the ledger counts, which leaves sleep out."""
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return int((started - asleep) * 1e9)


def program_of(pid: int) -> str:
    """Return the command line of a process, or "" if it cannot be had.

    The process may be another user's, and what it calls itself a control sequence of a terminal:
    what is not printable is a question mark.
    """
    try:
        with io.open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            words = file.read().rstrip("\0").replace("\0", " ")
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in words)


def has_memory(pid: int) -> bool:
    """Whether a process has any memory. One that ends has given it back; one that begins has some.

    Neither has a command line.
    """
    try:
        with io.open(f"/proc/{pid}/statm", "rb") as file:
            return not file.read().startswith(b"0 ")
    except OSError:
        return False


def status_of(number: int, name: str) -> str:
    """Return what the kernel's status file says of a process or a thread under a name.

    Returns:
        The text behind the name, without blanks around it; "" if it cannot be had.

    """
    try:
        with io.open(f"/proc/{number}/status", encoding="utf-8", errors="replace") as file:
            pairs = (line.partition(":") for line in file)
            return next((text.strip() for key, _, text in pairs if key == name), "")
    except OSError:
        return ""


def _field(pid: int, place: int) -> str:
    return proc_stat.field(f"/proc/{pid}/stat", place)


def lives(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has reaped yet has.

    Where the kernel's file on it cannot be read, for want of a descriptor, one that is no child of
    this process counts as living until it is reaped.
    """
    state = state_of(pid)
    return state not in proc_stat.ENDED if state else _answers(pid)


def _answers(pid: int) -> bool:
    """Whether there is such a process; of a child whether it has not ended. No file is opened."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return proc_stat.is_there(pid)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP); one that a debugger holds is not."""
    return state_of(pid) == _STOPPED


def wake(pid: int) -> None:
    """Continue a process if it is stopped."""
    if is_stopped(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
