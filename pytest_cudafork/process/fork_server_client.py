"""A fork server for those who need its children: it is started, and started again when it is gone.

What goes on between it and one server is in ``server_process.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, os, threading
from pytest_cudafork.errors import ChildError
from pytest_cudafork.process import child, launch, supervision
from pytest_cudafork.process.protocol import frames, messages, sockets
from pytest_cudafork.process.protocol.messages import Descriptor
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings
from pytest_cudafork.process.server_process import ForkRefusedError, NoAnswerError, ServerProcess

_MOST_LOST = 2
"""How many servers may be lost over one child."""
_MOST_SILENT = 2
"""How many servers may have to be ended because they did not answer, which takes its time."""


class NoServerError(ChildError):
    """Servers were lost until no other may be started."""


class ForkServerClient:
    """A fork server that is started when it is needed, and again if it is gone.

    Args:
        settings: Called before each start; what the server is told.
        outputs: Whether its children need this process's standard output and error.
        most_starts: How many servers may be started because one was lost; None: any number.
        many: After so many children a server that ends has done its work, and is no sign of
            trouble.

    """

    def __init__(
        self,
        settings: Callable[[], ServerSettings],
        *,
        outputs: bool = False,
        most_starts: int | None = None,
        many: int = 100,
    ) -> None:
        self._settings = settings
        self._outputs = outputs
        self._most_starts = most_starts
        self._many = many
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._server: ServerProcess | None = None
        self._leaving: list[ServerProcess] = []
        """Those that end their process."""
        self._served = self._silent = 0
        self.starts = 0
        """How many servers were started, since the last time that one had done its work."""
        self.refused = ""
        """Why the server could not fork when it was asked last; "": it could, or was not asked."""

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        return None if self._server is None else self._server.pid

    @property
    def may_start(self) -> bool:
        """Whether another server may be started if this one is lost."""
        if self._most_starts is None:
            return True
        return self.starts <= self._most_starts and self._silent < _MOST_SILENT

    def start(self) -> None:
        """Start a server; what goes wrong in its preparation is told by ``wait_ready``.

        Raises:
            OSError: There is no process or descriptor left for it.

        """
        self._server = ServerProcess(self._settings(), outputs=self._outputs)
        self.starts += 1

    def wait_ready(self) -> CannotFork | None:
        """Wait until the server is prepared; return why it cannot be forked, or None if it can."""
        if self._server is None:
            self.start()
        assert self._server is not None, "it was started"
        return self._server.wait_ready()

    def descriptors(self) -> list[int]:
        """Return what leads to the server and to children that wait."""
        return [] if self._server is None else self._server.descriptors()

    def fork_ahead(self) -> None:
        """Have the next child forked, if there is a server."""
        if self._server is not None:
            self._server.fork_ahead()

    def start_job(
        self,
        entry: str,
        data: Any = None,
        fds: Mapping[Descriptor, int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> launch.Running:
        """Return a child that does a job in this process's world.

        Args:
            entry: The function that does it, "package.module:function".
            data: Plain data for it.
            fds: Descriptors for it, by what they are (``Descriptor``).
            env: Variables to add to its environment.

        Raises:
            ChildError: There is none to be had.

        """
        child.flush_streams()
        running = self.take_child()
        try:
            with launch.request_file(launch.forked_request(data, env)) as request_fd:
                given = {Descriptor.REQUEST: request_fd, **(fds or {})}
                send_job(running, messages.Job(entry, list(given)), list(given.values()))
        except BaseException:
            running.close()
            raise
        return running

    def take_child(self) -> launch.Running:
        """Return a child of the server, of a new one if the old is gone; it waits for its job.

        Raises:
            NoServerError: There is no server, and there will be none.
            ForkRefusedError: The server cannot fork.
            ChildError: There is none to be had.

        """
        self._forget_if_forked()
        with self._lock:
            self.refused = ""
            try:
                return self._take_child()
            except ForkRefusedError as error:
                self.refused = str(error)
                raise

    def _take_child(self) -> launch.Running:
        lost = 0
        while True:
            if self._server is None:
                self._start_prepared(again=lost > 0)
            running = self._child_of_this_server()
            if running is not None:
                return running
            lost += 1
            self.close_server()
            if self._most_starts is None and lost == _MOST_LOST:
                raise ChildError("the fork server died twice while it was asked")
            if not self.may_start:
                raise NoServerError(f"{self._lost_again_and_again()} (warnings tell how)")

    def _lost_again_and_again(self) -> str:
        if self._silent >= _MOST_SILENT:
            return f"{self._silent} fork servers did not answer"
        return f"the fork server died {self.starts} times"

    def _child_of_this_server(self) -> launch.Running | None:
        """Return a living child; None if the server is gone."""
        server = self._server
        while server is not None:
            try:
                running = server.take_child()
            except NoAnswerError:
                self._silent += 1
                break
            except EOFError:
                break
            gone = server.is_gone
            if not gone and not running.has_ended:
                self._served += 1
                if self._served % self._many == 0:
                    self.starts = 1  # it may be replaced again
                return running
            _drop(running)  # it went with the server, or died while it waited
            if gone:
                break
            server.fork_ahead()
        return None

    def _start_prepared(self, *, again: bool) -> None:
        """Start a server and wait until it is prepared.

        Raises:
            NoServerError: It cannot be forked, though the one that was lost could.
            ForkRefusedError: There is no process or descriptor left for it.
            ChildError: It cannot be forked.

        """
        try:
            self.start()
        except OSError as error:
            text = f"the fork server could not be started: {error}"
            raise ForkRefusedError(text) from error
        why_not = self.wait_ready()
        if why_not is not None:
            self.close_server()
            if again:
                raise NoServerError(
                    f"the fork server died, and there is no other: {why_not.reason}"
                )
            how = why_not.text.removeprefix("the fork server ")
            wrote = why_not.output or "(nothing)"
            raise ChildError(f"the fork server did not start: it {how}. It wrote: {wrote}")

    def close_server(self, *, reap: bool = True) -> None:
        """End the server, if there is one; with ``reap`` wait for what is left of it."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._leaving.append(server)
        while self._leaving and reap:
            self._leaving.pop().reap()

    def close(self) -> None:
        """End the server and its children; it starts again if it is asked again."""
        self._forget_if_forked()
        with self._lock:
            self.close_server()

    def _forget_if_forked(self) -> None:
        """Drop the handle if the server belongs to the process that this one was forked from."""
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        self._lock = threading.RLock()  # a thread that was not forked may hold the old one
        self.close_server()


def send_job(running: launch.Running, job: messages.Job, fds: list[int]) -> None:
    """Tell a child that waits what it is to do; one that is dead is noticed where it is watched."""
    with contextlib.suppress(OSError):
        sockets.send(running.sock, frames.encode(job.to_plain(), running.cookie), fds)


def _drop(running: launch.Running) -> None:
    """End a child that nobody has a use for."""
    supervision.Supervisor(running).kill()
