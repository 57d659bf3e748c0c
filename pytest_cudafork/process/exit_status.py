"""The words for how a process ended: exit statuses, signals, and where it was."""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import signal
from pytest_cudafork.process.forking.short_stack import EXIT_LOST

_HINTS = {
    "SIGKILL": "out of memory? See `dmesg`; or something else killed it",
    "SIGBUS": "is /dev/shm full, or was a mapped file truncated?",
    "SIGILL": "a binary built for another CPU?",
    "SIGTRAP": "a failed check of a native library?",
    "SIGXCPU": "the CPU time limit (RLIMIT_CPU) is used up",
    "SIGSYS": "a seccomp filter refused a system call",
}
_SHELL_SIGNAL_BASE = 128
RUNS_A_TEST = (
    "pytest_pyfunc_call",
    "pytest_fixture_setup",
    "pytest_runtest_setup",
    "pytest_runtest_call",
    "pytest_runtest_teardown",
)
"""Functions from which on, outwards, a stack shows pytest and this package only."""
OWN_FOLDERS = tuple(
    f"pytest_cudafork/{name}/" for name in ("isolate", "call", "process", "file_worker")
)
"""Folders whose frames do the same."""
_MACHINERY = (
    *(f"in {name}" for name in RUNS_A_TEST),
    *(f"/{folder}" for folder in OWN_FOLDERS),
)


def signal_name(exitcode: int) -> str:
    """Return the name of the signal behind a negative exit code, or "" for any other code.

    Real-time signals, which Python mostly does not name, read as ``SIGRTMIN+n``.
    """
    if exitcode >= 0:
        return ""
    number = -exitcode
    try:
        return signal.Signals(number).name
    except ValueError:
        pass  # not a name of the enum: a real-time signal, or none at all
    if signal.SIGRTMIN <= number <= signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return f"signal {number}"


def describe(exitcode: int | None) -> str:
    """Say in words how a process ended, as the predicate of a sentence about it.

    ``exitcode`` follows ``multiprocessing``: negative is a signal, None is not known.
    """
    if exitcode is None:
        return "ended with an unknown status"
    name = signal_name(exitcode)
    if name:
        hint = _HINTS.get(name)
        words = f"was killed by {name} (exit status {exitcode})"
        return f"{words}; {hint}" if hint else words
    words = f"exited with status {exitcode}"
    if exitcode > _SHELL_SIGNAL_BASE:
        by_shell = signal_name(_SHELL_SIGNAL_BASE - exitcode)
        if by_shell.startswith("SIG"):
            words += f" (a shell's way to say {by_shell})"
    return words


def lost(exitcode: int | None, what: str) -> str:
    """What to add where a process exited with the status of one that could not tell anything.

    ``what`` ran in it.
    """
    if exitcode != EXIT_LOST:
        return ""
    return f"; it could not report: did {what} close descriptors that it did not open?"


REAPED = (
    "has ended, and how is not known: something else in this process has waited for it (a handler "
    "of SIGCHLD, os.wait, a thread)"
)
"""What is to be said of a child whose exit status was taken by others."""
WITH_SERVER = (
    "has ended with the fork server that had started it, and whose warning says how the server "
    "ended"
)
"""What is to be said of a child that the end of its server took along, or that had ended before."""


def shorten(stacks: str) -> str:
    """Return faulthandler's stacks without the frames that led from the start into the test."""
    kept: list[str] = []
    dropped = 0
    for line in [*stacks.splitlines(), ""]:
        is_frame = line.startswith("  File ")
        if is_frame and (dropped or any(mark in line for mark in _MACHINERY)):
            dropped += 1
            continue
        if dropped:
            kept.append(f"  ... {dropped} frames of pytest and its start")
            dropped = 0
        kept.append(line)
    return "\n".join(kept).rstrip("\n")


def where(stacks: str, native: str, state: str, *, stuck: bool = False) -> str:
    """Return what is known of where a process was when it died or was ended, as paragraphs.

    Args:
        stacks: What faulthandler wrote.
        native: What py-spy wrote.
        state: What the kernel says of its threads, for want of stacks.
        stuck: Whether it did not die of SIGKILL.

    """
    parts = []
    if stacks:
        parts.append(f"Stacks of the process:\n{shorten(stacks)}")
    elif state:
        parts.append(f"It gave no stacks of Python code.\n{state}")
    if native:
        parts.append(f"Native stacks, by py-spy:\n{native}")
    if stuck:
        parts.append("It did not even die of SIGKILL: it hangs in the kernel, and is left to it.")
    return "".join(f"\n\n{part}" for part in parts)
