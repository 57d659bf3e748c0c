"""Starting child processes by fork of this process, or as a fresh interpreter.

Children of a fork server come from ``fork_server_client.py``. How a child is watched is in
``supervision.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from warnings import catch_warnings, filterwarnings

from pytest_cudafork.compat import standard_library, written_in_c
from pytest_cudafork.compat.unpatched import contextlib, io, os, select, signal, subprocess, time
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.descendants.caretaker import package_folder
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.forking.short_stack import DueFork, Steps, Turn, perform
from pytest_cudafork.process.loud_warning import end_loudly
from pytest_cudafork.process.protocol import frames, sockets
from pytest_cudafork.settings import environment

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05
_WARNS_OF_FORKS = sys.version_info >= (3, 12)


class Running(NamedTuple):
    """A child process that was started and not yet reaped.

    ``reap`` waits for its end and returns the exit code (negative: signal; None: whoever could tell
    is gone); until then its number is not given to another process. ``pidfd`` is -1 where the
    kernel or Python has none. ``ends_group`` says that whoever reaps it also ends its process
    group, and may do so unasked.
    """

    pid: int
    pidfd: int
    sock: sockets.AnySocket
    stacks_fd: int
    reap: Callable[[], int | None]
    cookie: bytes
    """What the frames of both sides bear, and what the child and its descendants are known by."""
    ends_group: bool = False
    caretaker: Caretaker | None = None
    """Who ends what this child leaves if this process dies first."""

    def is_over(self) -> None:
        """Let the caretaker know that nothing is left of the child."""
        if self.caretaker is not None:
            self.caretaker.over(self.cookie)

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        if self.pidfd < 0:
            return False
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    @property
    def is_open(self) -> bool:
        """Whether this process has its descriptors for the child still."""
        return self.sock.fileno() >= 0

    def close(self) -> None:
        """Close this process's descriptors for the child."""
        self.sock.close()
        for fd in (self.stacks_fd, self.pidfd):
            if fd >= 0:
                os.close(fd)


class Ends(NamedTuple):
    """The descriptors made for one child, before it exists."""

    ours: sockets.AnySocket
    theirs: sockets.AnySocket
    stacks_fd: int
    cookie: bytes
    caretaker: Caretaker | None = None

    def running(self, pid: int, reap: Callable[[], int | None]) -> Running:
        """Keep our half; the child has its own by now."""
        self.theirs.close()
        if self.caretaker is not None:
            self.caretaker.begun(self.cookie, pid)
        return Running(
            pid,
            pidfd(pid),
            self.ours,
            self.stacks_fd,
            reap,
            self.cookie,
            caretaker=self.caretaker,
        )


def pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends, or -1."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or a Python built on one
        return -1


@contextlib.contextmanager
def ends(caretaker: Caretaker | None = None) -> Iterator[Ends]:
    """Make the descriptors; close them again if the start fails.

    The caretaker hears of the child before there is one: this process may be killed at any time,
    and what the child starts in its first moment is to be ended then, too.
    """
    with contextlib.ExitStack() as undo:
        ours, theirs = sockets.pair()
        undo.callback(ours.close)
        undo.callback(theirs.close)
        stacks_fd = os.memfd_create("pytest-cudafork-stacks", os.MFD_CLOEXEC)
        undo.callback(os.close, stacks_fd)
        cookie = frames.new_cookie()
        if caretaker is not None:
            undo.callback(caretaker.over, cookie)
            caretaker.begun(cookie, 0)
        yield Ends(ours, theirs, stacks_fd, cookie, caretaker)
        undo.pop_all()


@contextlib.contextmanager
def _signals_held_back() -> Iterator[Callable[[], None]]:
    """Hold back signals whose Python handlers raise, so that none can tear a fork apart."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGALRM}
    before = written_in_c.set_signal_mask(signal.SIG_BLOCK, held)

    def let_through() -> None:
        written_in_c.set_signal_mask(signal.SIG_SETMASK, before)

    try:
        yield let_through
    finally:
        let_through()


@contextlib.contextmanager
def _no_warning_of_forks() -> Iterator[None]:
    with catch_warnings():
        filterwarnings("ignore", ".*use of fork\\(\\)", DeprecationWarning)
        yield


def start_fork(
    body: Callable[[Channel, int], Iterator[Turn]],
    private: Iterable[int] = (),
    begin: Callable[[], None] | None = None,
    caretaker: Caretaker | None = None,
) -> Running:
    """Fork this process, here, and run a body in the child: see ``fork_steps``."""
    __tracebackhide__ = True
    return perform(fork_steps(body, private, begin, caretaker))


def fork_steps(
    body: Callable[[Channel, int], Iterator[Turn]],
    private: Iterable[int] = (),
    begin: Callable[[], None] | None = None,
    caretaker: Caretaker | None = None,
) -> Steps[Running]:
    """Fork this process and run ``body(channel, stacks_fd)`` in the child.

    Python 3.12 warns of every fork of a process with threads. Here the fork was asked for, and with
    ``-W error`` the warning would be raised in the parent after the child exists, so it is not
    shown; a child that hangs on a lock of a lost thread is ended at its time limit with its stacks.

    Args:
        body: What the child does, or the calls that are to be made for it above a short stack.
        private: Descriptors of this process that lead to other processes. In the child they lead
            nowhere, so that a test that writes to what it did not open does no harm.
        begin: Called in the child first, before any signal gets through to it.
        caretaker: Who ends what the child leaves if this process dies first; None: nobody.

    Raises:
        CudaForkError: The fork guard refuses (raised by ``os.fork`` itself, nothing was forked).

    """
    __tracebackhide__ = True  # of a refusal the user's line says more
    child.flush_streams()
    child.prepare_for_forks()

    def begin_child() -> Iterator[Turn]:
        pair.ours.close()
        _lead_nowhere(to_others)
        if begin is not None:
            begin()
        leftovers.mark_process(pair.cookie)
        channel = Channel(pair.theirs, pair.cookie)
        let_through()
        return body(channel, pair.stacks_fd)

    with ends(caretaker) as pair, contextlib.ExitStack() as undo:
        to_others = [*private, *([] if caretaker is None else caretaker.descriptors())]
        with _signals_held_back() as let_through:
            with _no_warning_of_forks() if _WARNS_OF_FORKS else contextlib.nullcontext():
                due = DueFork(begin_child)
                yield due
                if due.error is not None:
                    raise due.error
            pid = due.pid
            undo.callback(_abandon, pid, pair.cookie)  # a signal that was held back may raise
            with contextlib.suppress(OSError):  # the child may have done it, or be gone
                os.setpgid(pid, pid)
        running = pair.running(pid, lambda: reap(pid))
        undo.pop_all()
        return running


def _abandon(pid: int, cookie: bytes) -> None:
    """End a child that nobody will watch, with all that it has started."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    end_loudly(lambda: leftovers.end({cookie: pid}))
    reap(pid)


def _lead_nowhere(fds: Iterable[int]) -> None:
    """Replace descriptors; closed, their numbers would be given away while objects hold them."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(nowhere, fd, inheritable=False)
    os.close(nowhere)


def reap(pid: int) -> int | None:
    """Reap a child of this process; None if somebody else has reaped it, and knows how it ended."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def wait_for_program(process: subprocess.Popen[bytes]) -> int | None:
    """Reap a program; ``Popen.wait`` takes one that others have reaped for one that ended well."""
    exitcode = reap(process.pid)
    process.returncode = exitcode or 0
    return exitcode


def has_ended(process: subprocess.Popen[bytes], seconds: float = 0.0) -> bool:
    """Wait so long for the end of a program; ``returncode`` then says how it ended.

    ``Popen.poll`` and ``wait`` take a lock, which stays taken where Ctrl-C comes right after that:
    from then on they see no end. One that others have reaped ended well, as there.
    """
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while process.returncode is None:
        try:
            end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            process.returncode = 0
            break
        if end is not None:
            exited = end.si_code == os.CLD_EXITED
            process.returncode = end.si_status if exited else -end.si_status
            reap(process.pid)
            break
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def start_spawn(
    entry: str,
    data: Any,
    env: dict[str, str] | None = None,
    caretaker: Caretaker | None = None,
) -> Running:
    """Run a job in a fresh interpreter with this one's flags, ``sys.path`` and surroundings.

    ``__main__`` is never imported again.

    Args:
        entry: The function that does the job, "package.module:function".
        data: Plain data for it.
        env: Variables to add to the environment.
        caretaker: Who ends what the child leaves if this process dies first; None: nobody.

    """
    child.flush_streams()
    with ends(caretaker) as pair, request_file(_request(entry, data, pair.cookie)) as request_fd:
        fds = (pair.theirs.fileno(), request_fd, pair.stacks_fd)
        process = subprocess.Popen(
            interpreter_command("pytest_cudafork.process.child:run_request", fds),
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env=None if env is None else {**os.environ, **env},
        )
        return pair.running(process.pid, lambda: wait_for_program(process))


_MARKED = (
    "import os, sys; sys.path.append(sys.argv[1]); "
    "from pytest_cudafork.process.descendants.leftovers import mark_process; "
    "mark_process(bytes.fromhex(sys.argv[2])); gate = int(sys.argv[3]); "
    "os.read(gate, 1) or os._exit(1); os.close(gate); os.execv(sys.argv[4], sys.argv[4:])"
)
"""Becomes a program once it has marked itself, so that nothing of it is ever without the mark."""


class Gate:
    """Holds back a program that was started, until somebody watches it.

    Whatever tears the start apart, as Ctrl-C does, closes the gate, and the program never runs.
    """

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def open(self) -> None:
        """Let the program run; nothing if it was opened before."""
        if self._write_fd >= 0:
            os.write(self._write_fd, b".")
        self.close()

    def close(self) -> None:
        """Close this process's ends."""
        fds, self.read_fd, self._write_fd = (self.read_fd, self._write_fd), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def start_program(
    command: Sequence[str],
    env: Mapping[str, str],
    gate: Gate,
    cwd: str | None = None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int,
    stderr: int,
    caretaker: Caretaker | None = None,
) -> Running:
    """Run any program, which says nothing to this process but by its output and its end.

    Args:
        command: The program's file and its arguments.
        env: Its whole environment.
        gate: What it waits for before it begins.
        cwd: Its working directory; None: this one.
        stdin: A descriptor for each of its streams; this process goes on to hold its own.
        stdout: Likewise.
        stderr: Likewise.
        caretaker: Who ends what the program leaves if this process dies first; None: nobody.

    Raises:
        OSError: It cannot be started.
        ValueError: A word of the command, or a variable, holds a null byte.

    """
    child.flush_streams()
    with ends(caretaker) as pair:
        known = (package_folder(), pair.cookie.hex(), str(gate.read_fd))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _MARKED, *known, *command],
            pass_fds=(gate.read_fd,),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # a terminal's signals are for this process
        )
        return pair.running(process.pid, lambda: wait_for_program(process))


def interpreter_command(entry: str, numbers: tuple[int, ...]) -> list[str]:
    """Return the command of a fresh interpreter with this one's flags and ``sys.path``.

    Args:
        entry: The function that it calls, "package.module:function".
        numbers: The arguments of the call; descriptors, mostly.

    """
    module, _, function = entry.partition(":")
    code = (
        # no collection of garbage while modules are imported: it takes a third of the time
        f"import gc, sys; gc.disable(); sys.path[:] = {path_texts()!a}; "
        f"from {module} import {function}; {function}{numbers}"
    )
    return [sys.executable, *standard_library.interpreter_flags(), "-c", code]


def path_texts() -> list[str]:
    """Return ``sys.path`` without entries that the import system ignores anyway."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _request(entry: str, data: Any, cookie: bytes) -> dict[str, Any]:
    """Return what a fresh interpreter has to know (see ``child.run_request``)."""
    argv = [str(arg) for arg in sys.argv]
    return {"entry": entry, "data": data, "cookie": cookie, "path": path_texts(), "argv": argv}


def forked_request(data: Any, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what a child of a fork server has to know to do a job in this process's world."""
    return {"data": data, "path": path_texts(), "surroundings": child.surroundings(env or {})}


@contextlib.contextmanager
def request_file(request: dict[str, Any]) -> Iterator[int]:
    """Put a request into a memory file: its size never matters, and no reader has to be there."""
    fd = os.memfd_create("pytest-cudafork-request", os.MFD_CLOEXEC)
    try:
        with io.open(fd, "wb", closefd=False) as file:
            file.write(frames.dumps(request))
        yield fd
    finally:
        os.close(fd)


def usable_cores() -> int:
    """Return how many cores this process may use, next to its likes under pytest-xdist."""
    try:
        workers = int(environment.value(environment.XDIST_WORKERS, "1"))
    except ValueError:  # somebody else's variable
        workers = 1
    return max(1, len(os.sched_getaffinity(0)) // max(1, workers))
