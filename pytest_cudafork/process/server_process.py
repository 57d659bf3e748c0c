"""One fork server as its parent sees it, from its start to its end (``fork_server.py``).

A server that is started again when it is lost is a ``ForkServerClient``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pytest_cudafork.compat.unpatched import (
    contextlib,
    os,
    select,
    signal,
    socket,
    subprocess,
    time,
)
from pytest_cudafork.errors import ChildError
from pytest_cudafork.process import exit_status, hang_stacks, launch
from pytest_cudafork.process.descendants import leftovers, process_state
from pytest_cudafork.process.loud_warning import end_loudly, loud_warning
from pytest_cudafork.process.protocol import frames, messages, server_messages, sockets
from pytest_cudafork.process.protocol.one_reader import OneReader
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings

READY_SECONDS = 600.0
"""How long the preparation may take."""
_TOO_LONG = f"took longer than {READY_SECONDS:.0f} s"
CLOSE_SECONDS = 20.0
"""How long a server may take to end."""
_ANSWER_SECONDS = 60.0
_NO_DESCRIPTOR = "this process has no file descriptor left for another child"
_LOOK_SECONDS = 0.5
"""How long a server may be silent before somebody looks whether it is stopped."""
_STACKS_SECONDS = 10.0
_LOG_BYTES = 1 << 14


class NoAnswerError(Exception):
    """A server said nothing in time. No TimeoutError, which an alarm of the user's may raise."""


class ForkRefusedError(ChildError):
    """A server cannot fork."""


def _with_paths(settings: ServerSettings) -> ServerSettings:
    """Fill in what a server has of this process."""
    argv = tuple(settings.argv or [str(arg) for arg in sys.argv])
    return settings._replace(path=tuple(launch.path_texts()), argv=argv)


class ServerProcess:
    """One fork server, from its start to its end."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        outputs: bool = False,
        env: Mapping[str, str] | None = None,
        new_session: bool = False,
        quiet: bool = False,
    ) -> None:
        """Start it; it gets ready by itself.

        Args:
            settings: What it is told; ``path`` and ``argv`` are filled in.
            outputs: Whether its children need this process's standard output and error.
            env: Its whole environment; None: this process's.
            new_session: Whether it is cut off from the terminal.
            quiet: Whether nobody is warned that it did not end as it should.

        Raises:
            OSError: There is no process or descriptor left for it.

        """
        self.why_not: CannotFork | None = None
        """Why it cannot be forked, once it is ready."""
        self.about: dict[str, Any] = {}
        """What the preparation had to tell."""
        self.is_ready = False
        self._preparing = settings.preparing
        self._quiet = quiet
        self._owner = os.getpid()
        self._exits: dict[int, int] = {}
        self._refusal = ""
        """Why a child that was asked for could not be forked."""
        self._due = 0
        """How many children are on their way."""
        self._ahead: list[tuple[int, bytes, list[int]]] = []
        self._inbox: deque[tuple[messages.Message, list[int]]] = deque()
        self._done = False
        self._hung_up = False
        self._reader = OneReader()
        self._continued = False
        """Whether it was stopped and continued since it last said something."""
        self._silence = ""
        """For what it was asked in vain, as the predicate of a sentence about it."""
        self._when = "while it served"
        """When it ended, in words."""
        self._cookie = frames.new_cookie()
        self._things = contextlib.ExitStack()
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._files.close)
            undo.callback(self._things.close)
            self._process = self._start(settings, outputs, env, new_session)
            undo.pop_all()
        self._ended = {self._cookie: self.pid}
        """Whose descendants are ended in the end, by their cookies; 0: nobody knows the number."""
        self._serving = [self.pid]
        """It, and those that took its place one after the other; the last one serves."""

    def _start(
        self,
        settings: ServerSettings,
        outputs: bool,
        env: Mapping[str, str] | None,
        new_session: bool,
    ) -> subprocess.Popen[bytes]:
        self._control, theirs = sockets.pair(socket.SOCK_SEQPACKET)
        self._things.enter_context(self._control)
        with theirs, contextlib.ExitStack() as fds:
            self._log_fd = self._file("pytest-cudafork-server")
            self._stacks_fd = self._file("pytest-cudafork-stacks")
            request = {"cookie": self._cookie, "settings": _with_paths(settings).to_plain()}
            request_fd = fds.enter_context(launch.request_file(request))
            given = [-1, -1]
            if outputs:
                given = [os.dup(fd) for fd in (1, 2)]
                for fd in given:
                    fds.callback(os.close, fd)
            arguments = (theirs.fileno(), request_fd, self._stacks_fd, *given)
            return self._exec(arguments, env, new_session)

    def _exec(
        self, arguments: tuple[int, ...], env: Mapping[str, str] | None, new_session: bool
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            launch.interpreter_command("pytest_cudafork.process.fork_server:main", arguments),
            pass_fds=[fd for fd in arguments if fd >= 0],
            stdin=subprocess.DEVNULL,
            stdout=self._log_fd,
            stderr=self._log_fd,
            # not what C code has put in place beside it: each child would take that out again
            env=dict(os.environ if env is None else env),
            start_new_session=new_session,
        )

    def _file(self, name: str) -> int:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        self._files.callback(os.close, fd)
        return fd

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
        """Whether it has ended, or is about to."""
        return self._hung_up or launch.has_ended(self._process)

    def descriptors(self) -> list[int]:
        """Return what leads to it and to the children that it has forked ahead."""
        return [self._control.fileno(), *(fds[0] for _, _, fds in self._ahead)]

    # -- its start -------------------------------------------------------------------------------

    def wait_ready(self) -> CannotFork | None:
        """Wait until it is prepared; return why it cannot be forked, or None if it can."""
        if not self.is_ready:
            deadline = time.monotonic() + READY_SECONDS
            self.tell(server_messages.Waiting())  # it may have been using the time
            try:
                self._wait_for(lambda: self.is_ready, deadline)
            except (NoAnswerError, EOFError, ConnectionError) as error:
                self.why_not = self._failed_start(error)
                self.is_ready = True
        return self.why_not

    def _failed_start(self, error: Exception) -> CannotFork:
        """Say why it did not get ready."""
        silent = isinstance(error, NoAnswerError)
        if not launch.has_ended(self._process, 0.0 if silent else CLOSE_SECONDS):
            self._process.kill()
        self._quiet = True  # the reason is told where it is asked for
        how = str(error) if isinstance(error, NoAnswerError) else ""
        how = how or exit_status.describe(self._process.returncode)
        text = f"the fork server {how} {self._preparing}"
        return CannotFork("", "start", text, output=self.log)

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        size = os.fstat(self._log_fd).st_size
        tail = os.pread(self._log_fd, _LOG_BYTES, max(0, size - _LOG_BYTES))
        return tail.decode("utf-8", "replace").strip()

    # -- children --------------------------------------------------------------------------------

    def fork_ahead(self) -> None:
        """Have the next child forked: after the last one got its work, which goes first."""
        self._due += 1
        self.tell(server_messages.Fork())

    def take_child(self) -> launch.Running:
        """Return a child that waits for its job.

        Raises:
            ForkRefusedError: There is no process, memory or descriptor left for it, or the guard
                refuses.
            NoAnswerError: The server does not answer; it is to be closed, which tells of it.
            EOFError: The server is gone.

        """
        deadline = time.monotonic() + _ANSWER_SECONDS
        asked_again = False
        while not self._ahead:
            if self._refusal:
                refusal, self._refusal = self._refusal, ""
                if asked_again:
                    raise ForkRefusedError(f"the fork server could not fork: {refusal}")
                asked_again = True  # it was some time ago, and may be possible by now
                self.fork_ahead()
            elif self._due <= 0:
                self.fork_ahead()
            try:
                self._wait_for(lambda: bool(self._ahead or self._refusal), deadline)
            except NoAnswerError:
                self._silence = self._silence or f"gave no process within {_ANSWER_SECONDS:g} s"
                raise
            except ConnectionError as error:
                raise EOFError(str(error)) from error
        pid, cookie, fds = self._ahead.pop(0)
        sock = sockets.Endpoint(fds[0])
        return launch.Running(
            pid,
            launch.pidfd(pid),
            sock,
            fds[1],
            lambda: self._exit_code(pid),
            cookie,
            ends_group=True,
        )

    def _exit_code(self, pid: int) -> int | None:
        """Wait for the word on a dead child; None if the server is gone, which took it along."""
        try:
            self._wait_for(lambda: pid in self._exits, time.monotonic() + _ANSWER_SECONDS)
        except (ConnectionError, NoAnswerError, EOFError, ValueError):
            # ValueError: it was closed meanwhile
            return None
        return self._exits.pop(pid)

    # -- the connection --------------------------------------------------------------------------

    def tell(self, message: messages.Message) -> None:
        """Tell it something; one that is gone is noticed where its answer is waited for."""
        with contextlib.suppress(OSError):
            self._control.send(frames.encode(message.to_plain(), self._cookie))

    def next_message(self, seconds: float) -> tuple[messages.Message, list[int]] | None:
        """Return the next message that is not about attended children, and its descriptors.

        None if nothing has come for so long, or if it was stopped again and again meanwhile.
        Raises EOFError if the server is gone.
        """
        try:
            self._wait_for(lambda: bool(self._inbox), time.monotonic() + seconds)
        except NoAnswerError:
            return None
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        return self._inbox.popleft()

    def _wait_for(self, has_come: Callable[[], bool], deadline: float) -> None:
        """Take messages until something has come, which another thread may be the one to take.

        Raises:
            NoAnswerError: It did not come in time.
            EOFError: The server is gone.

        """
        if not self._reader.wait(has_come, lambda: self._take_message(deadline), deadline):
            raise NoAnswerError(_TOO_LONG)

    def _take_message(self, deadline: float) -> None:
        """Take one message and note what it says.

        Raises:
            NoAnswerError: None came in time.
            EOFError: The server is gone.

        """
        message, fds = self._receive(deadline)
        self._continued, self._silence = False, ""
        if isinstance(message, server_messages.ChildForked) and len(fds) < 2:
            message = server_messages.ForkRefused(_NO_DESCRIPTOR)  # the kernel gave what it could
        if isinstance(message, server_messages.ChildForked) and len(fds) == 2:
            self._due -= 1
            self._ahead.append((message.pid, message.cookie, fds))
            return
        if isinstance(message, server_messages.JobEnded) and len(fds) == 1:
            self._inbox.append((message, fds))
            return
        for fd in fds:
            os.close(fd)
        if isinstance(message, server_messages.ChildEnded):
            self._exits[message.pid] = message.exitcode
        elif isinstance(message, server_messages.ForkRefused):
            self._due -= 1
            self._refusal = message.text
        elif isinstance(message, messages.Done):
            self._done = True
        elif isinstance(message, server_messages.Ready):
            self.is_ready = True
            self.about = message.about
            self._due += message.ahead
            if message.why_not is not None:
                self.why_not = CannotFork(**{**message.why_not, "pid": self.pid})
            self._inbox.append((message, []))
        elif isinstance(message, server_messages.TookPlace):
            self._serving.append(message.pid)
        elif message is not None:
            if isinstance(message, server_messages.JobBegins):
                self._ended.setdefault(message.cookie, 0)
            elif isinstance(message, server_messages.JobStarted):
                self._ended[message.cookie] = message.pid
            elif isinstance(message, server_messages.Lost):
                del self._serving[max(1, len(self._serving) - 1) :]
            self._inbox.append((message, []))

    def _receive(self, deadline: float) -> tuple[messages.Message | None, list[int]]:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while not poller.poll(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic())) * 1000):
            if time.monotonic() >= deadline:
                raise NoAnswerError(_TOO_LONG)
            if self.is_mine and not self.is_gone:
                self._continue_if_stopped()
        try:
            data, fds = self._receive_packet()
        except ConnectionResetError:
            # it has ended without reading all; what it had sent before is still there
            data, fds = self._receive_packet()
        if not data:
            self._hung_up = True
            raise EOFError("the fork server closed the connection")
        return messages.decode_or_none(frames.only(data, self._cookie)), fds

    def _continue_if_stopped(self) -> None:
        """Continue it if it was stopped; raise NoAnswerError if that was done and does not help."""
        stopped = [pid for pid in self._serving if process_state.is_stopped(pid)]
        if stopped and self._continued:
            self._silence = "was stopped, and again when it was continued,"
            raise NoAnswerError(self._silence)
        self._continued = self._continued or bool(stopped)
        for pid in stopped:
            process_state.wake(pid)

    def _receive_packet(self) -> tuple[bytes, list[int]]:
        return sockets.receive_with_fds(
            self._control, server_messages.LONGEST_PACKET, server_messages.MOST_DESCRIPTORS
        )

    # -- its end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End it and its children; ``reap`` has to follow.

        Between the two the kernel takes it apart, which nobody need wait for.
        """
        if not self.is_mine:
            self._process.returncode = 0  # not our child: Popen must neither wait nor warn
        else:
            if not (self._silence or self.is_gone):
                self._when = "at the end of its session"
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + (0.0 if self._silence else CLOSE_SECONDS)
            if not self._is_done(deadline):
                self._wait_for_end(deadline)
        self._things.close()
        for pid, cookie, fds in self._ahead:
            self._ended[cookie] = pid
            for fd in fds:
                os.close(fd)
        self._ahead.clear()
        while self._inbox:
            for fd in self._inbox.pop()[1]:
                os.close(fd)

    def reap(self) -> None:
        """Wait for the process, and end what it has left."""
        if self.is_mine:
            self._wait_for_end(time.monotonic() + CLOSE_SECONDS)
            end_loudly(lambda: leftovers.end(self._ended))
        self._files.close()

    def kill(self) -> int:
        """End it at once, with what it has started; return its exit code (negative: signal)."""
        self._quiet = True  # whoever does this knows
        with contextlib.suppress(OSError):
            self._process.kill()
        return self.exitcode(CLOSE_SECONDS)

    def exitcode(self, seconds: float) -> int:
        """Wait so long for its end; return its exit code, that of SIGKILL if it has not ended."""
        if launch.has_ended(self._process, seconds):
            return int(self._process.returncode)
        return -signal.SIGKILL

    def _is_done(self, deadline: float) -> bool:
        """Whether it says that it has finished its session, and that all went well."""
        with contextlib.suppress(OSError, EOFError, ValueError, NoAnswerError):
            self._wait_for(lambda: self._done, deadline)
        return self._done

    def _wait_for_end(self, deadline: float) -> None:
        """Wait while it finishes its session; say so, once, if that goes wrong.

        One that has ended by itself is asked how, too: it may have died a moment ago.
        """
        if launch.has_ended(self._process, max(0.0, deadline - time.monotonic())):
            code = self._process.returncode
            trouble = exit_status.describe(code) if code != 0 else ""
        else:
            trouble = self._silence or f"did not end within {CLOSE_SECONDS:g} s"
            trouble += " and was killed"
            if hang_stacks.ask(self.pid):
                launch.has_ended(self._process, _STACKS_SECONDS)
            self._process.kill()
            launch.has_ended(self._process, CLOSE_SECONDS)  # unless it hangs in the kernel
        if trouble and not self._quiet:
            log = exit_status.shorten(self.log)
            text = f"the fork server {trouble} {self._when}; it wrote:\n{log or '(nothing)'}"
            loud_warning(RuntimeWarning(text))
            self._quiet = True
