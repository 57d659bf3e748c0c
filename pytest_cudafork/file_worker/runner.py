"""Runs files one after the other, each in a child of a fork server that has imported modules."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cudafork.compat.unpatched import contextlib, os, signal, time
from pytest_cudafork.errors import ChildError
from pytest_cudafork.file_worker.commands import Answer
from pytest_cudafork.process import exit_status, launch, supervision
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.fork_server_client import ForkServerClient
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.process.protocol.messages import Descriptor
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings

TIMED_OUT = 124
"""The return code of a file whose time was up, as ``timeout`` of the coreutils has it."""
SIGNAL_BASE = 128
_LOST = 1
_PREPARATION = "pytest_cudafork.file_worker.child.template:prepare"
_FILE = "pytest_cudafork.file_worker.child.run_file:run"


class NoTemplateError(ChildError):
    """The template that was started anew cannot be forked.

    Attributes:
        why_not: Why.

    """

    def __init__(self, why_not: CannotFork) -> None:
        super().__init__(why_not.reason)
        self.why_not = why_not


class FileRunner:
    """Files, each in a process of its own.

    Args:
        preload: The modules that the template imports.
        arguments: What each file gets as its command line.
        renew_after: After how many files the template is started anew; 0: never.
        timeout: How many seconds a file may take; None: any number.

    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        *,
        arguments: Sequence[str] = (),
        renew_after: int = 0,
        timeout: float | None = None,
    ) -> None:
        self._arguments = list(arguments)
        self._renew_after = renew_after
        self._timeout = timeout
        settings = ServerSettings(
            prepare=_PREPARATION,
            data={"preload": list(preload)},
            ignore_signals=True,
            preparing="while it imported modules",
        )
        self._server = ForkServerClient(lambda: settings, most_starts=None)
        self._caretaker = Caretaker()
        self._files = 0
        self._running: launch.Running | None = None

    def start(self) -> CannotFork | None:
        """Start the template, if it does not run, and wait for it; return why it cannot be forked.

        Raises:
            OSError: There is no process left for it.

        """
        why_not = self._server.wait_ready()
        if why_not is not None:
            self._server.close()
        return why_not

    @property
    def template(self) -> int | None:
        """The template's process id; None while there is none."""
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """Whether a file runs."""
        return self._running is not None

    def run(self, filename: str, timeout: float | None = None) -> Answer:
        """Run a file, and return how it ended.

        Args:
            filename: Its path.
            timeout: How many seconds it may take; None: as long as the others.

        Raises:
            ChildError: There is no process for it, or none that can be forked.
            NoTemplateError: The template had to be started anew, and cannot be forked now.
            OSError: There is no process left for the template.

        """
        if self._renew_after and self._files == self._renew_after:
            self._server.close()
            self._files = 0
            why_not = self.start()
            if why_not is not None:
                raise NoTemplateError(why_not)
        self._files += 1
        limit = self._timeout if timeout is None else timeout
        start = time.perf_counter()
        code, why = self._run(filename, limit)
        return Answer(filename, code, time.perf_counter() - start, why)

    def _run(self, filename: str, limit: float | None) -> tuple[int, str]:
        data = {"filename": filename, "arguments": self._arguments}
        outputs = {Descriptor.STDOUT: 1, Descriptor.STDERR: 2}
        said = _Said()
        ending = self._watch(self._server.start_job(_FILE, data, outputs), said, limit)
        hidden = said.hidden
        if not hidden:
            return _result(ending, said, limit)
        running = launch.start_spawn(_FILE, data, caretaker=self._caretaker)
        said = _Said()
        code, why = _result(self._watch(running, said, limit), said, limit)
        note = (
            "it ran in a fresh interpreter, for the template has imported other modules of the "
            f"names of those beside it: {hidden}"
        )
        return code, f"{why}\n{note}" if why else note

    def _watch(
        self, running: launch.Running, said: _Said, limit: float | None
    ) -> supervision.Ending:
        self._running = running
        try:
            ending = supervision.Supervisor(running).watch(said.take, limit)
        finally:
            self._running = None
        assert ending is not None, "a watch that waits for the end has one"
        return ending

    def interrupt(self) -> None:
        """Send the file that runs, if there is one, what Ctrl-C sends to a program."""
        running = self._running
        if running is not None:
            with contextlib.suppress(OSError):
                os.kill(running.pid, signal.SIGINT)

    def close(self) -> None:
        """End the template, and what runs."""
        self._server.close()
        self._caretaker.close()


class _Said:
    """What the child of one file says."""

    def __init__(self) -> None:
        self.hidden = ""
        """Which modules the file could not have imported there, so that it did not run."""
        self.ended = False
        """Whether the file came to its end."""
        self.trouble = ""
        """What went wrong outside the file."""

    def take(self, message: messages.Message, fds: list[int]) -> supervision.Said:
        """Take one message.

        Raises:
            FrameError: A file says no such thing.

        """
        for fd in fds:  # it sends none
            os.close(fd)
        match message:
            case messages.Done():
                return supervision.Said.DONE
            case messages.Exited():
                self.ended = True
            case messages.NotLoaded():
                self.hidden = message.text
            case messages.InternalError():
                self.trouble = message.text
            case _:
                raise frames.FrameError(f"there are no messages of kind {message.kind!r}")
        return supervision.Said.MORE


def _result(ending: supervision.Ending, said: _Said, limit: float | None) -> tuple[int, str]:
    """Return the return code of a file, and what is to be said beside it."""
    where = exit_status.where(ending.stacks, ending.native, ending.state, stuck=ending.stuck)
    if ending.timed_out:
        return TIMED_OUT, f"it did not end within {limit:g} s and was killed{where}"
    code = ending.exitcode
    if said.trouble:
        return code or _LOST, f"it could not be run: {said.trouble.strip()}"
    if ending.malformed:
        how = exit_status.describe(code)
        return code if code > 0 else _LOST, (
            f"it {how}, and had written to a descriptor that it did not open ({ending.malformed})"
        )
    if code < 0:
        when = " after it had come to its end" if said.ended else ""
        return SIGNAL_BASE - code, f"it {exit_status.describe(code)}{when}{where}"
    if code == 0 and not said.ended and not said.hidden:
        return code, "it ended its process before its end (os._exit(0))"
    lost = exit_status.lost(code, "the file")
    if lost and not said.ended:
        return code, f"it {exit_status.describe(code)}{lost}"
    return code, ""
