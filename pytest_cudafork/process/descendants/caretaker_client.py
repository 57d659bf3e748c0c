"""The pytest process's side of its caretaker: started with the first child, told of each."""

from __future__ import annotations

import sys

from pytest_cudafork.compat.unpatched import contextlib, os, signal, socket, subprocess
from pytest_cudafork.process.descendants.caretaker import (
    BEGUN,
    LEAVE,
    OVER,
    PACKET,
    package_folder,
)
from pytest_cudafork.process.protocol import sockets

_COOKIE_BYTES = 16
_IN_BACKGROUND = '"$@" </dev/null >/dev/null 2>&1 & echo $!'
_TELL_SECONDS = 2.0
"""How long it may take to hear something; then it is stopped, and is told nothing more."""


class Caretaker:
    """Ends what children leave when this process dies before it could; started when it is needed.

    What goes wrong with it is no trouble of a test: then nobody looks after them, as before.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._things = contextlib.ExitStack()
        self._connection: sockets.Endpoint | None = None
        self._cookie = os.urandom(_COOKIE_BYTES)
        self._started = False
        self._pidfd = -1
        self.pid: int | None = None
        """Its process id, once it was started."""

    @property
    def is_for_this_process(self) -> bool:
        """Whether it was made here, and not in a process from which this one was forked."""
        return self._owner == os.getpid()

    def begun(self, cookie: bytes, pid: int) -> None:
        """Tell of a child, known by the mark of its cookie."""
        if not self._started:
            self._started = True
            # no process or descriptor is left, or no shell that tells a number
            with contextlib.suppress(OSError, ValueError):
                self._start()
        self._tell(BEGUN, cookie, pid)

    def over(self, cookie: bytes) -> None:
        """Tell that nothing is left of a child."""
        self._tell(OVER, cookie, 0)

    def descriptors(self) -> list[int]:
        """Return what leads to it."""
        return [] if self._connection is None else [self._connection.fileno()]

    def close(self) -> None:
        """End it, with nothing to do; a process that was forked from this one leaves it alone."""
        if self._owner == os.getpid():
            self._tell(LEAVE, bytes(_COOKIE_BYTES), 0)
            if self._connection is None and self._pidfd >= 0:  # it does not listen
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._connection, self._pidfd = None, -1
        self._started = False
        self._things.close()

    def _tell(self, what: bytes, cookie: bytes, pid: int) -> None:
        if self._connection is not None and self._owner == os.getpid():
            packet = PACKET.pack(self._cookie, what, cookie, pid)
            try:
                self._connection.send(packet)
            except OSError:  # somebody has killed it, or stopped it
                self._connection = None

    def _start(self) -> None:
        """Start it by a shell, which ends: a test that looks for children of pytest finds none."""
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as given:
            ours, theirs = sockets.pair(socket.SOCK_SEQPACKET)
            undo.enter_context(ours)
            given.enter_context(theirs)
            ours.settimeout(_TELL_SECONDS)
            fds = [theirs.fileno()]
            with contextlib.suppress(AttributeError, OSError):  # an old kernel
                fds.append(os.pidfd_open(os.getpid()))
                given.callback(os.close, fds[-1])
            code = (
                f"import sys; sys.path.append({package_folder()!a}); "
                "from pytest_cudafork.process.descendants.caretaker import main; "
                f"main({fds[0]}, {fds[1] if len(fds) > 1 else -1}, {self._cookie!r})"
            )
            # Where it writes the process id. No pipe: Popen would open its end with io.open.
            answer = os.memfd_create("pytest-cudafork-caretaker", os.MFD_CLOEXEC)
            given.callback(os.close, answer)
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _IN_BACKGROUND, "sh", sys.executable, "-I", "-S", "-c", code],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # a terminal's signals are for the session
            )
            shell.wait()
            self.pid = int(os.pread(answer, 32, 0))
            with contextlib.suppress(AttributeError, OSError):
                self._pidfd = os.pidfd_open(self.pid)
                undo.callback(os.close, self._pidfd)
            self._things.push(undo.pop_all())
        self._connection = ours
