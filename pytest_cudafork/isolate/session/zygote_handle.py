"""Owns the parent's handle of the zygote: starting, asking and closing it. Runs in the parent.

What the zygote does is in ``zygote.py``; what its children do is not known here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.errors import ChildError
from pytest_cudafork.process import exit_status, hang_stacks, launch, leftovers, wire

READY_SECONDS = 600.0
"""How long collection may take in the zygote."""
_ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_STACKS_SECONDS = 2.0
_LONGEST_REPLY = 1 << 18
_MOST_FDS = 2
_LOG_BYTES = 1 << 14


@dataclass(frozen=True)
class Blame:
    """Why a process cannot be forked: ``path`` is the file whose import did it, or "".

    ``kind`` is "cuda", "threads" or "start"; ``pid`` the process that showed it, or 0; ``text`` one
    line; ``output`` what the process wrote before it failed.
    """

    path: str
    kind: str
    text: str
    pid: int = 0
    output: str = ""

    @property
    def reason(self) -> str:
        """What to tell of a test that cannot have a child of the zygote."""
        if self.path:
            return f"after the import of {os.path.basename(self.path)}, {self.text}"
        last = self.output.rpartition("\n")[2].strip()
        return f"{self.text} ({last})" if last else self.text


def loud_warning(warning: Warning) -> None:
    """Warn of what no test's report can tell.

    It is shown even where warnings are errors: here it would end the session.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(warning, stacklevel=3)


class Zygote:
    """One zygote process, from its start to its end."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Start it; it gets ready by itself.

        Raises:
            OSError: There is no process or descriptor left for it.

        """
        import subprocess

        self.blame: Blame | None = None
        self.errors: list[str] = []
        self._ready = False
        self._owner = os.getpid()
        self._exits: dict[int, int] = {}
        self._refusal = ""
        """Why a child that was asked for could not be forked."""
        self._ahead: list[tuple[int, bytes, list[int]]] = []
        self._done = False
        self._cookie = wire.new_cookie()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_fd = os.memfd_create("pytest-cudafork-zygote", os.MFD_CLOEXEC)
        try:
            with launch.request_file({**request, "cookie": self._cookie}) as request_fd:
                outputs = [os.dup(fd) for fd in (1, 2)]
                fds = [theirs.fileno(), request_fd, *outputs]
                code = (
                    f"import sys; sys.path[:] = {launch.path_texts()!a}; "
                    "from pytest_cudafork.isolate.child.zygote import main; main()"
                )
                try:
                    self._process = subprocess.Popen(
                        [
                            sys.executable,
                            *standard_library.interpreter_flags(),
                            "-c",
                            code,
                            *map(str, fds),
                        ],
                        pass_fds=fds,
                        stdin=subprocess.DEVNULL,
                        stdout=self._log_fd,
                        stderr=self._log_fd,
                    )
                finally:
                    for fd in outputs:
                        os.close(fd)
            self._ended = {self._cookie: self.pid}
        except BaseException:
            self._control.close()
            os.close(self._log_fd)
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self._process.pid)

    @property
    def is_mine(self) -> bool:
        """Whether this process started it, and was not forked since."""
        return self._owner == os.getpid()

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def descriptors(self) -> list[int]:
        """Return what leads to it and to the children that it has forked ahead."""
        return [self._control.fileno(), *(fds[0] for _, _, fds in self._ahead)]

    def wait_ready(self) -> Blame | None:
        """Wait until it has collected; return why it cannot be forked, or None if it can."""
        if self._ready:
            return self.blame
        deadline = time.monotonic() + READY_SECONDS
        self._tell("waiting")  # it may have been using the time
        text = ""
        while not text.startswith("ready "):
            try:
                text, _ = self._receive(deadline)
            except (TimeoutError, EOFError, ConnectionError) as error:
                self.blame = self._failed_start(error)
                self._ready = True
                return self.blame
        about = json.loads(text.removeprefix("ready "))
        self._ready = True
        self.errors = about["errors"]
        if about["blame"] is not None:
            self.blame = Blame(**about["blame"], pid=self.pid)
        return self.blame

    def take_child(self) -> launch.Running:
        """Return a child that waits for its work; ``fork_ahead`` has the next one forked.

        Raises:
            ChildError: There is none to be had.
            EOFError: The zygote is gone.

        """
        deadline = time.monotonic() + _ANSWER_SECONDS
        asked_again = False
        while not self._ahead:
            if self._refusal:
                refusal, self._refusal = self._refusal, ""
                if asked_again:
                    raise ChildError(f"the fork server could not fork: {refusal}")
                asked_again = True  # it was some time ago, and may be possible by now
                self.fork_ahead()
            try:
                self._take_message(deadline)
            except TimeoutError:
                raise ChildError(
                    f"the fork server gave no process within {_ANSWER_SECONDS:.0f} s"
                ) from None
            except ConnectionError as error:
                raise EOFError(str(error)) from error
        pid, cookie, fds = self._ahead.pop(0)
        sock = socket.socket(fileno=fds[0])
        return launch.Running(
            pid,
            launch.pidfd(pid),
            sock,
            fds[1],
            lambda: self._exit_code(pid),
            cookie,
            ends_group=True,
        )

    def fork_ahead(self) -> None:
        """Have the next child forked: after the last one got its work, which goes first."""
        self._tell("next")

    def _tell(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it is gone; who waits for its answer notices
            self._control.send(word.encode())

    def close(self) -> None:
        """End its session and its children; ``reap`` has to follow.

        Between the two the kernel takes it apart, which nobody need wait for.
        """
        if not self.is_mine:
            self._process.returncode = 0  # not our child: Popen must neither wait nor warn
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        if self.is_mine and self._process.poll() is None:
            deadline = time.monotonic() + _CLOSE_SECONDS
            if not self._is_done(deadline):
                self._wait_for_end(deadline)
        self._control.close()
        for pid, cookie, fds in self._ahead:
            self._ended[cookie] = pid
            for fd in fds:
                os.close(fd)
        self._ahead.clear()

    def reap(self) -> None:
        """Wait for the process, and end what it has left."""
        if self.is_mine:
            if self._process.poll() is None:
                self._wait_for_end(time.monotonic() + _CLOSE_SECONDS)
            leftovers.end(self._ended)
        os.close(self._log_fd)

    def _is_done(self, deadline: float) -> bool:
        """Whether it says that it has finished its session, and that all went well."""
        with contextlib.suppress(OSError, EOFError, ValueError):  # TimeoutError is an OSError
            while not self._done:
                self._take_message(deadline)
        return self._done

    def _wait_for_end(self, deadline: float) -> None:
        """Wait while it finishes its session; say so if that goes wrong."""
        import subprocess

        trouble = ""
        try:
            code = self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
            trouble = exit_status.describe(code) if code != 0 else ""
        except subprocess.TimeoutExpired:
            trouble = f"did not end within {_CLOSE_SECONDS:g} s and was killed"
            with contextlib.suppress(subprocess.TimeoutExpired):
                if hang_stacks.ask(self.pid):
                    self._process.wait(timeout=_STACKS_SECONDS)
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                self._process.wait(timeout=_CLOSE_SECONDS)
        if trouble:
            log = exit_status.shorten(self._log())
            text = f"the fork server {trouble} at the end of its session; it wrote:\n{log}"
            loud_warning(RuntimeWarning(text))

    def _log(self) -> str:
        """Return the end of what it wrote."""
        size = os.fstat(self._log_fd).st_size
        tail = os.pread(self._log_fd, _LOG_BYTES, max(0, size - _LOG_BYTES))
        return tail.decode("utf-8", "replace").strip()

    def _exit_code(self, pid: int) -> int:
        """Wait for the zygote's word on a dead child; killed, if the zygote took it with itself."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while pid not in self._exits:
            try:
                self._take_message(deadline)
            except (OSError, EOFError, ValueError):  # ValueError: it was closed meanwhile
                return -signal.SIGKILL
        return self._exits.pop(pid)

    def _take_message(self, deadline: float) -> None:
        """Take one message that tells of children."""
        text, fds = self._receive(deadline)
        word, _, rest = text.partition(" ")
        if word == "child" and len(fds) == _MOST_FDS:
            pid, _, cookie = rest.partition(" ")
            self._ahead.append((int(pid), bytes.fromhex(cookie), fds))
            return
        for fd in fds:
            os.close(fd)
        if word == "exit":
            pid, _, code = rest.partition(" ")
            self._exits[int(pid)] = int(code)
        elif word == "error":
            self._refusal = rest
        elif word == "done":
            self._done = True

    def _receive(self, deadline: float) -> tuple[str, list[int]]:
        """Receive one message.

        Raises:
            TimeoutError: None came in time.
            EOFError: The zygote is gone.

        """
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"it took longer than {READY_SECONDS:.0f} s")
        data, fds, _, _ = socket.recv_fds(self._control, _LONGEST_REPLY, _MOST_FDS)
        if not data:
            raise EOFError("the fork server closed the connection")
        return data.decode("utf-8", "replace"), fds

    def _failed_start(self, error: Exception) -> Blame:
        """Say why it did not get ready."""
        import subprocess

        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0 if isinstance(error, TimeoutError) else _CLOSE_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
        log = self._log()
        how = str(error) if isinstance(error, TimeoutError) else ""
        how = how or exit_status.describe(self._process.returncode)
        return Blame("", "start", f"the fork server {how} while it collected", output=log)
