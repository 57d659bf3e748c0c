"""Runs one program to its end, whatever that is: marked, with its output, and nothing left of it.

What the program says is its output and its exit status; what it did, the ledger has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_cudafork.compat.unpatched import contextlib, io, os, subprocess, time
from pytest_cudafork.process import hang_stacks, launch
from pytest_cudafork.process.descendants import leftovers, process_state
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.process.signals import ChildSignal
from pytest_cudafork.process.supervision import Ending, Said, Supervisor
from pytest_cudafork.programs.output import KeptOutput

_GRACE_SECONDS = 2.0
"""How long what a program has started may outlive it before that counts as left running."""
_FORK_SERVER_SECONDS = 30.0
"""The same for a fork server of ``multiprocessing``: it goes by itself when all that use it have
gone, but that takes a while where much is imported in it, torch above all."""
_FORK_SERVER = "from multiprocessing.forkserver import main"
"""What its command line holds, and with it that of each process it has forked."""
_LOOK_SECONDS = 0.01
_STACKS_SECONDS = 10.0
"""How long the descendants of a program whose time is up may take to write their stacks."""
STACKS_ON_ABORT = {"PYTHONFAULTHANDLER": "1"}
"""What makes a Python program, and its descendants, write their stacks when they are ended."""


@dataclass(frozen=True)
class LeftProcess:
    """A process that was still running when the program that had started it ended."""

    pid: int
    command: str


@dataclass(frozen=True)
class ProgramRun:
    """How a program ended.

    Attributes:
        pid: Its process.
        ending: Its exit code, and whether its time was up.
        stdout: What it and its descendants wrote there.
        stderr: Likewise.
        left: What it had left running when it ended by itself, and was ended then.

    """

    pid: int
    ending: Ending
    stdout: KeptOutput
    stderr: KeptOutput
    left: tuple[LeftProcess, ...]


class _ProgramSupervisor(Supervisor):
    """Ends a program that says nothing to this process, and keeps account of what it leaves."""

    def __init__(
        self,
        running: launch.Running,
        streams: Sequence[KeptOutput],
        gate: launch.Gate,
    ) -> None:
        """Watch a program, which runs when the gate is opened."""
        super().__init__(running, streams=streams)
        self._gate = gate
        self.left: tuple[LeftProcess, ...] = ()

    def _until_dead(self, deadline: float | None, until_done: bool) -> bool:
        self._gate.open()  # from here on whatever ends the wait ends the program
        return super()._until_dead(deadline, until_done)

    def _abort(self) -> None:
        """Let the descendants write their stacks, too: where a program hangs is often there."""
        cookie = self.running.cookie
        others = [pid for pid in leftovers.busy_processes(cookie) if pid != self.running.pid]
        super()._abort()
        asked = {pid for pid in others if hang_stacks.ask(pid)}
        until = time.monotonic() + _STACKS_SECONDS
        while asked.intersection(leftovers.busy_processes(cookie)) and time.monotonic() < until:
            for stream in self._streams:
                stream.take()
            time.sleep(_LOOK_SECONDS)

    def _end_descendants(self, *, well: bool) -> None:
        if well:
            self.left = _still_running(self.running.cookie)
        super()._end_descendants(well=well)


def _still_running(cookie: bytes) -> tuple[LeftProcess, ...]:
    """Return what has the mark and does not end by itself within a moment."""
    begun = time.monotonic()
    while found := leftovers.busy_processes(cookie):
        waited = time.monotonic() - begun
        if waited >= _FORK_SERVER_SECONDS:
            break
        if waited >= _GRACE_SECONDS and not all(_is_fork_server(pid, found) for pid in found):
            break
        time.sleep(_LOOK_SECONDS)
    return tuple(LeftProcess(pid, process_state.program_of(pid)) for pid in found)


def _is_fork_server(pid: int, among: Collection[int]) -> bool:
    """Whether a process is a fork server, and none that another of these has forked."""
    command = process_state.program_of(pid)
    # One without a command line has ended since.
    return not command or (_FORK_SERVER in command and process_state.parent_of(pid) not in among)


def run_program(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
    caretaker: Caretaker | None = None,
) -> ProgramRun:
    """Run a program to its end; afterwards nothing that descends from it is left.

    Args:
        command: Its file and arguments.
        env: Its whole environment.
        cwd: Its working directory; None: this process's.
        stdin: What it can read.
        timeout: Seconds after which it is ended with its descendants; None: no limit.
        caretaker: Who ends it if this process dies; None: one is started for it.

    Raises:
        OSError: It cannot be started.

    """
    if caretaker is None:
        with contextlib.closing(Caretaker()) as own:
            return run_program(command, env, cwd=cwd, stdin=stdin, timeout=timeout, caretaker=own)
    sigchld = ChildSignal()
    with contextlib.ExitStack() as undo, sigchld.kept():
        gate = launch.Gate()
        undo.callback(gate.close)
        stdout, stderr = KeptOutput(), KeptOutput()
        undo.callback(stdout.close)
        undo.callback(stderr.close)
        running = launch.start_program(
            command,
            env,
            gate,
            cwd,
            stdin=_readable(stdin, undo),
            stdout=stdout.write_fd,
            stderr=stderr.write_fd,
            caretaker=caretaker,
        )
        stdout.given_away()
        stderr.given_away()
        supervisor = _ProgramSupervisor(running, (stdout, stderr), gate)
        ending = supervisor.watch(_no_message, timeout)
        assert ending is not None, "a watch that waits for the end has one"
        stdout.take_rest()
        stderr.take_rest()
    return ProgramRun(running.pid, ending, stdout, stderr, supervisor.left)


def _no_message(message: messages.Message, fds: list[int]) -> Said:
    """Take a message, which no program sends: its end of the socket was never given to it.

    Raises:
        FrameError: Always.

    """
    raise frames.FrameError(f"a program sends no messages, and this is one: {message.kind!r}")


def _readable(data: bytes, undo: contextlib.ExitStack) -> int:
    """Return a descriptor from which a program reads ``data``."""
    if not data:
        return subprocess.DEVNULL
    fd = os.memfd_create("pytest-cudafork-stdin", os.MFD_CLOEXEC)
    undo.callback(os.close, fd)
    with io.open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
