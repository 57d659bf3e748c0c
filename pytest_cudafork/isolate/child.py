"""Owns what every child does first and last, whichever way it was started. Runs in the child.

It imports nothing of the parent side, and does not know what the job is that it runs in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from pytest_cudafork.isolate import wire

ISOLATED_ENV = "_CUDAFORK_ISOLATED"
"""Set to "1" for the session of a child: the plugin reads it there, and isolates nothing again.

A forked child needs no sign: it runs its test and is never asked how.
"""

EXIT_LOST = 70
"""Exit status of a child that could not deliver what it had to say."""

_PR_SET_PDEATHSIG = 1


class Channel:
    """The child's end of the socket to the process that waits for it.

    Only the process that made it speaks: a grandchild forked by the test, which runs on into our
    code because an exception carried it out of the test, says nothing (see ``is_mine``).
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this process is the child itself and no descendant of it."""
        return os.getpid() == self._pid

    def send(self, kind: str, **data: Any) -> None:
        """Send one message of plain data.

        Raises:
            OSError: The other end is gone, or the test closed our descriptor.

        """
        if self.is_mine:
            self._sock.sendall(wire.encode({"kind": kind, **data}))

    def send_with_fds(self, kind: str, fds: list[int], **data: Any) -> None:
        """Send one short message together with copies of file descriptors."""
        if self.is_mine:
            socket.send_fds(self._sock, [wire.encode({"kind": kind, **data})], fds)

    def leave_if_not_mine(self) -> None:
        """End this process at once if it is a descendant that ran out of the test."""
        if not self.is_mine:
            os._exit(EXIT_LOST)


def prepare(stacks_fd: int) -> None:
    """Make this process a child that can be ended as a whole and that tells its stacks.

    It leads a process group of its own, dies with the thread that started it, reads nothing from
    the terminal, and writes the stacks of all threads to ``stacks_fd`` on a fatal signal.
    """
    with contextlib.suppress(OSError):  # the parent may have done it already
        os.setpgid(0, 0)
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    arm_stacks(stacks_fd)


def arm_stacks(stacks_fd: int) -> None:
    """Send the stacks of all threads to ``stacks_fd`` on a fatal signal, SIGABRT among them."""
    import faulthandler

    with contextlib.suppress(OSError, ValueError):  # the test closed the descriptor
        faulthandler.enable(file=stacks_fd, all_threads=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # a libc without prctl: not Linux's own
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forget_parent_exit_work() -> None:
    """Drop what the parent registered for its own end, after a fork.

    Its atexit functions must not run here, and ``multiprocessing`` must not take the parent's
    children for ours: it would terminate the daemons among them when we end.
    """
    import atexit

    atexit._clear()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children = set()  # as multiprocessing's own bootstrap does
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def leave(status: int) -> NoReturn:
    """End this process: what was registered for its end, its streams, and no more.

    The interpreter is not taken apart: after a fork that is not ours to do, and the libraries of a
    GPU are known to crash there.
    """
    import atexit

    try:
        atexit._run_exitfuncs()
    finally:
        flush_streams()
        os._exit(status)


def flush_streams() -> None:
    """Flush Python's output streams, if they are there and in order."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, replaced or broken by the test
            stream.flush()


def adopt_streams() -> None:
    """Let ``sys.stdout`` and ``sys.stderr`` write to descriptors 1 and 2.

    After a fork they may be objects that keep the text in this process's memory, where it would be
    lost (``capsys``, ``--capture=sys``).
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", None) or "utf-8"
        stream = open(  # noqa: SIM115  # lives as long as the process
            fd, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
        )
        setattr(sys, name, stream)


def read_request(fd: int) -> dict[str, Any]:
    """Read the whole request from a memory file and close it."""
    with open(fd, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = wire.loads(file.read())
    return request


def run_request(channel_fd: int, request_fd: int, stacks_fd: int) -> NoReturn:
    """Do the job of a request in this process, which was made for it, and end."""
    for fd in (channel_fd, request_fd, stacks_fd):
        os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=channel_fd))
    status = EXIT_LOST
    try:
        prepare(stacks_fd)
        request = read_request(request_fd)
        sys.path[:] = request["path"]
        sys.argv[:] = request["argv"]
        status = _run_job(channel, request, stacks_fd)
    except BaseException:
        traceback.print_exc()
    finally:
        channel.leave_if_not_mine()
        leave(status)


def _run_job(channel: Channel, request: dict[str, Any], stacks_fd: int) -> int:
    if request["job"] == "call":
        from pytest_cudafork.isolate import child_call

        return child_call.run_pickled(channel, request)
    from pytest_cudafork.isolate import child_session

    return child_session.run_session(channel, request, stacks_fd)
