"""What can be learned from outside about a process that hangs.

Stacks come from py-spy where that is installed; the states of the threads come from the kernel.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from pytest_cudafork.compat import proc_stat
from pytest_cudafork.compat.unpatched import contextlib, io, os, select, signal, time
from pytest_cudafork.process import exit_status, launch
from pytest_cudafork.process.descendants import process_state

PY_SPY_SECONDS = 10.0
"""How long py-spy may take; reading the symbols of a large library takes seconds."""
_TRIES = 5
_MACHINERY = (
    *(f"{name} (" for name in exit_status.RUNS_A_TEST),
    *(f"({folder}" for folder in exit_status.OWN_FOLDERS),
)
"""Frames from which on, outwards, a stack shows pytest and this package only."""
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel, not to be interrupted",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
    "I": "idle",
}


def py_spy() -> str | None:
    """Return the path of py-spy: beside this interpreter, else on ``PATH``, else None."""
    # Not by which() of shutil: the functions that it calls may be a test's own by now.
    folders = [os.path.dirname(sys.executable or ""), *os.get_exec_path()]
    programs = (os.path.join(folder, "py-spy") for folder in folders)
    return next((program for program in programs if os.access(program, os.X_OK)), None)


def native_stacks(pid: int, seconds: float = PY_SPY_SECONDS) -> str:
    """Return the native and Python stacks of all threads, by py-spy, or "" without it.

    The process is stopped while its stacks are read and goes on afterwards. What py-spy says when
    it cannot do it (a container that forbids ptrace) is returned as one line.
    """
    text, why_not = _dump(pid, seconds, "--native")
    return f"({why_not})" if why_not else _without_machinery(text)


class PythonStack(NamedTuple):
    """One thread of a process, as py-spy reads it.

    Attributes:
        thread: Its number with the operating system.
        name: Its name in Python.
        frames: ``file:line in function``, innermost first.

    """

    thread: int
    name: str
    frames: tuple[str, ...]


def python_stacks(pid: int, seconds: float = PY_SPY_SECONDS) -> tuple[tuple[PythonStack, ...], str]:
    """Read the Python stacks of all threads, by py-spy; the process is not stopped for it.

    What moves while it is read cannot always be read: it is tried again a few times.

    Returns:
        The stacks; where there are none, why, in words.

    """
    if py_spy() is None:
        return (), "py-spy is not installed: pip install pytest-cudafork[attach]"
    why_not = ""
    for _ in range(_TRIES):
        text, why_not = _dump(pid, seconds, "--nonblocking", "--full-filenames", "--json")
        if why_not:
            continue
        try:
            return tuple(map(_stack_of, json.loads(text))), ""
        except (ValueError, TypeError, KeyError) as error:
            return (), f"py-spy says what cannot be read: {error!r}"
    return (), why_not


def _stack_of(thread: dict[str, Any]) -> PythonStack:
    frames = (
        f"{frame['filename']}:{frame['line']} in {frame['name']}" for frame in thread["frames"]
    )
    number = int(thread.get("os_thread_id") or 0)
    return PythonStack(number, str(thread.get("thread_name") or ""), tuple(frames))


def _dump(pid: int, seconds: float, *options: str) -> tuple[str, str]:
    """Run ``py-spy dump``: its output; or "" and why there is none ("" without py-spy)."""
    program = py_spy()
    if program is None:
        return "", ""
    try:
        status, output = _run([program, "dump", *options, "--pid", str(pid)], seconds)
    except OSError as error:
        return "", f"py-spy cannot be run: {error}"
    if status is None:
        if "--nonblocking" not in options:
            with contextlib.suppress(OSError):  # py-spy was killed while it held the process
                os.kill(pid, signal.SIGCONT)
        return "", f"py-spy gave no answer within {seconds:g} s"
    text = output.decode("utf-8", "replace").strip()
    if status != 0:
        said = " ".join(text.partition("Stack backtrace:")[0].split())[:500]
        return "", f"py-spy failed with status {status}: {said}"
    return text, ""


def _run(command: list[str], seconds: float) -> tuple[int | None, bytes]:
    """Run a program; its exit status, None where it was killed as its time was up, and its output.

    Not by ``subprocess``: the functions that this calls may be a test's own by now.

    Raises:
        OSError: It cannot be started.

    """
    until = time.monotonic() + seconds
    ours, theirs = os.pipe()
    places = (
        (os.POSIX_SPAWN_DUP2, theirs, 1),
        (os.POSIX_SPAWN_DUP2, theirs, 2),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    )
    try:
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=places)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    output, in_time = b"", False
    try:
        while data := _read_until(until, ours):
            output += data
        in_time = data is not None
    finally:
        os.close(ours)
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        status = launch.reap(pid)
    # Not known where somebody else has reaped it: then what it wrote has to do.
    return (status or 0) if in_time else None, output


def _read_until(until: float, fd: int) -> bytes | None:
    """Read what a pipe has next, b"" at its end; None: nothing came in time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    left = until - time.monotonic()
    return os.read(fd, 1 << 16) if left > 0 and poller.poll(left * 1000) else None


def _without_machinery(text: str) -> str:
    """Cut each thread's stack, which ends with its outermost frame, where pytest called the test.

    With native frames there is hardly a line of interest beyond.
    """
    kept: list[str] = []
    cutting = False
    for line in text.splitlines():
        frame = line.startswith((" ", "\t"))
        if not frame:
            cutting = False
        elif not cutting and any(mark in line for mark in _MACHINERY):
            cutting = True
            kept.append("    ... pytest and its start")
        if not cutting:
            kept.append(line)
    return "\n".join(kept)


def thread_states(pid: int) -> str:
    """Return one line for each thread: its name, what the kernel says it does, or "" if unknown.

    It helps where no stack can be had: a thread in ``futex_wait`` waits for a lock, and one that is
    not to be interrupted hangs in a driver or a network file system.
    """
    lines = []
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return ""
    for thread in threads:
        folder = f"/proc/{pid}/task/{thread}"
        state = proc_stat.field(f"{folder}/stat", proc_stat.STATE)
        try:
            name = _read(f"{folder}/comm").strip()
        except OSError:  # it ended in the meantime
            continue
        where = ""
        with contextlib.suppress(OSError):  # not every kernel tells
            wchan = _read(f"{folder}/wchan").strip()
            where = f" in {wchan}" if wchan not in ("", "0") else ""
        lines.append(f"thread {thread} ({name!r}): {_STATES.get(state, state)}{where}")
    return "\n".join(lines)


def why_no_stacks(pid: int) -> str:
    """Say why a process did not take the signals on which it would have written its stacks."""
    try:
        ours = os.readlink("/proc/self/exe")
    except OSError:
        return "Nothing can be said of it, for /proc is not there."
    try:
        other = os.readlink(f"/proc/{pid}/exe") != ours
    except OSError:  # gone, or another user's
        other = True
    if other:
        return f"It runs another program now: {process_state.program_of(pid)}"
    return (
        "It ignores the signals on which it would write its stacks, or has disarmed faulthandler: "
        "did the test set handlers for all signals?"
    )


def _read(path: str) -> str:
    with io.open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
