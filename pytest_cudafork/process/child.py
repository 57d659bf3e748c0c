"""Owns what every child does first and last, whichever way it was started. Runs in the child.

It imports nothing of the parent side, and does not know what the job is that it runs in between.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from pytest_cudafork.compat import standard_library
from pytest_cudafork.process import leftovers, wire

EXIT_LOST = 70
"""Exit status of a child that could not deliver what it had to say."""

_PR_SET_PDEATHSIG = 1
_TRACKER_SECONDS = 5.0
_READ_BYTES = 1 << 16


class Channel:
    """The child's end of the socket to the process that waits for it.

    Only the process that made it speaks: a grandchild forked by the test, which runs on into our
    code because an exception carried it out of the test, says nothing (see ``is_mine``).
    """

    def __init__(self, sock: socket.socket, cookie: bytes) -> None:
        self._sock = sock
        self._cookie = cookie
        self._pid = os.getpid()
        self._file: tuple[int, ...] | None = os.fstat(sock.fileno())[:2]
        self._decoder = wire.Decoder(cookie)
        self._inbox: list[wire.Message] = []

    @property
    def is_mine(self) -> bool:
        """Whether this process is the child itself and no descendant of it."""
        return os.getpid() == self._pid

    def send(self, kind: str, **data: Any) -> None:
        """Send one message of plain data.

        Raises:
            OSError: The other end is gone.

        """
        if self.is_mine:
            self._check_descriptor()
            self._sock.sendall(wire.encode({"kind": kind, **data}, self._cookie))

    def send_with_fds(self, kind: str, fds: list[int], **data: Any) -> None:
        """Send one short message together with copies of file descriptors."""
        if self.is_mine:
            self._check_descriptor()
            frame = wire.encode({"kind": kind, **data}, self._cookie)
            socket.send_fds(self._sock, [frame], fds)

    def _check_descriptor(self) -> None:
        """End this process if the test has closed our descriptor, or opened something else there.

        Nothing can be told any more; and going on, pytest would restore what it takes for its own
        descriptors and write to files of the test.
        """
        try:
            file = os.fstat(self._sock.fileno())[:2]
        except OSError:
            file = None
        if file != self._file:
            os._exit(EXIT_LOST)

    def receive(self) -> wire.Message | None:
        """Wait for the next message of the parent; None when it is gone or has nothing more.

        Raises:
            WireError: What came is no message.

        """
        while not self._inbox:
            try:
                data = self._sock.recv(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._inbox.extend(self._decoder.feed(data))
        return self._inbox.pop(0)

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
    """Send the stacks of all threads to ``stacks_fd`` on a fatal signal, SIGABRT among them.

    Also where a library has put a handler of its own in place of faulthandler's (tvm_ffi does so
    when it is imported): while it takes itself for enabled, faulthandler does not look.
    """
    import faulthandler

    with contextlib.suppress(OSError, ValueError):  # the test closed the descriptor
        os.fstat(stacks_fd)
        faulthandler.disable()
        faulthandler.enable(file=stacks_fd, all_threads=True)


def die_with_parent(yes: bool = True) -> None:
    """Ask the kernel to kill this process when the thread that started it ends, or not to."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # a libc without prctl: not Linux's own
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if yes else 0, 0, 0, 0)


@functools.cache
def _libc() -> Any:
    """Open the C library once; a child inherits it opened."""
    import ctypes

    return ctypes.CDLL(None)


def forget_parent_exit_work() -> None:
    """Drop what the parent registered for its own end, after a fork.

    Its atexit functions must not run here, and ``multiprocessing`` must not take the parent's
    children for ours: it would terminate the daemons among them when we end.
    """
    standard_library.clear_exit_functions()
    standard_library.forget_multiprocessing_children()


class Farewell(Protocol):
    """What takes the last word to the parent: a channel, or the zygote's control."""

    def send(self, word: str, /) -> None:
        """Tell the parent."""


def leave(status: int, channel: Farewell | None = None) -> NoReturn:
    """End this process: what was registered for its end, its streams, and no more.

    Where there is a channel, the parent is told when nothing is left that could fail, so that it
    need not wait while the kernel takes the process apart.

    The interpreter is not taken apart: after a fork that is not ours to do, and the libraries of a
    GPU are known to crash there.
    """
    try:
        standard_library.run_exit_functions()
        _end_resource_tracker()
        flush_streams()
        if channel is not None and status == 0:
            with contextlib.suppress(OSError):  # the parent is gone, or the test closed it
                channel.send("done")
    finally:
        flush_streams()
        os._exit(status)


def _end_resource_tracker() -> None:
    """Let ``multiprocessing`` remove shared memory that the test has forgotten, and wait for it.

    Its tracker does so when the last process that knows it has gone; but then it would be killed as
    what is left of the test. One that was there before this process was forked is not ours.
    """
    tracker = standard_library.resource_tracker()
    if tracker is None:
        return
    fd, pid = tracker
    with contextlib.suppress(OSError):  # the test has ended it; or it is not ours
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.close(fd)
        until = time.monotonic() + _TRACKER_SECONDS
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.002)


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
    channel: Channel | None = None
    status = EXIT_LOST
    is_session = False
    try:
        prepare(stacks_fd)
        request = read_request(request_fd)
        leftovers.wear(request["cookie"])
        channel = Channel(socket.socket(fileno=channel_fd), request["cookie"])
        is_session = request["job"] == "session"
        sys.path[:] = request["path"]
        sys.argv[:] = request["argv"]
        status = _run_job(channel, request, stacks_fd)
    except BaseException:
        traceback.print_exc()
    finally:
        if channel is not None:
            channel.leave_if_not_mine()
        leave(status, channel if is_session else None)


def _run_job(channel: Channel, request: dict[str, Any], stacks_fd: int) -> int:
    if request["job"] == "call":
        from pytest_cudafork.call import in_child

        return in_child.run_pickled(channel, request)
    from pytest_cudafork.isolate.child import pytest_session

    return pytest_session.run_session(channel, request, stacks_fd)


def environment(env: Mapping[str, str]) -> bytes:
    """Return this process's environment and ``env`` in one piece, as the kernel keeps it; sorted.

    Equal environments give equal bytes.
    """
    variables = {**os.environb, **{os.fsencode(k): os.fsencode(v) for k, v in env.items()}}
    return b"\0".join([b"%b=%b" % pair for pair in sorted(variables.items())])


def take_over(surroundings: dict[str, Any], environment_here: bytes = b"") -> None:
    """Make this process's environment, directory, umask and arguments those of the parent.

    ``surroundings`` is what the parent's ``launch.surroundings`` returned; ``environment_here``
    what ``environment`` returned here, if that was asked before: mostly there is nothing to change.
    """
    if surroundings["environ"] != environment_here:
        variables = surroundings["environ"].split(b"\0")
        environ = dict(variable.split(b"=", 1) for variable in variables if variable)
        here = dict(os.environb)
        for key in here.keys() - environ.keys():
            del os.environb[key]
        for key, value in environ.items():
            if here.get(key) != value:
                os.environb[key] = value
    os.chdir(surroundings["cwd"])
    os.umask(surroundings["umask"])
    sys.argv[:] = surroundings["argv"]
