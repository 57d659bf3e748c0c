"""Runs a program in the place of this process: its terminal, its streams, its signals, its end.

The program is a child in the same process group and session. A terminal therefore signals it by
itself; what somebody sends to this process is passed on. Where the program is stopped by its
terminal, this process stops too, so that a shell sees it; where this process is killed, the kernel
kills the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_cudafork.compat.unpatched import contextlib, os, resource, signal
from pytest_cudafork.compat.written_in_c import call_in_c
from pytest_cudafork.process.descendants import leftovers, process_state

_SENT_BY_KERNEL = 0x80
"""``si_code`` of a signal that a terminal sends to a whole process group (SI_KERNEL)."""
_STOPPED = 5
"""``si_code`` of a child that was stopped (CLD_STOPPED)."""
_BY_TERMINAL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_ALL = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_PR_SET_PDEATHSIG = 1
_ERRNO_BYTES = 4
_SHELL_SIGNAL_BASE = 128
_LOOK_SECONDS = 1.0
"""How often to look without a signal: where something has started a thread in this process (a
``.pth`` file), that thread may be given it, and loses it."""


class Foreground:
    """A program that runs in the foreground, from its start to its end."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], mark: bytes) -> None:
        """Start it; from here on signals to this process are for the program.

        Args:
            command: The program, as a shell would look for it, and its arguments.
            env: Its whole environment.
            mark: By which what descends from it is known.

        Raises:
            OSError: It cannot be executed.
            ValueError: A word of the command holds a null byte.

        """
        self._mark = mark
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        self._on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it tells nothing
        try:
            self.pid = self._start(command, env)
        except BaseException:
            self._let_signals_through()
            raise

    def _start(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        parent = os.getpid()
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read_fd)
                self._become(command, env, parent)
            except OSError as error:
                os.write(write_fd, (error.errno or 0).to_bytes(_ERRNO_BYTES, "little"))
            finally:
                os._exit(127)
        os.close(write_fd)
        failed = os.read(read_fd, _ERRNO_BYTES)  # until exec closes the other end
        os.close(read_fd)
        if failed:
            os.waitpid(pid, 0)
            number = int.from_bytes(failed, "little")
            raise OSError(number, os.strerror(number), command[0])
        return pid

    def _become(self, command: Sequence[str], env: Mapping[str, str], parent: int) -> None:
        """Turn this process, the child, into the program.

        Raises:
            OSError: It cannot be executed.

        """
        leftovers.mark_process(self._mark)
        with contextlib.suppress(OSError):  # a system without it
            call_in_c("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before the kernel knew
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; exec keeps that
            signal.signal(number, signal.SIG_DFL)
        if self._on_child is not None:
            signal.signal(signal.SIGCHLD, self._on_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        os.execvpe(command[0], list(command), dict(env))

    def wait(self) -> int:
        """Wait for its end, and pass on signals; return its exit code, negative for a signal."""
        while True:
            info = signal.sigtimedwait(_ALL, _LOOK_SECONDS)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._pass_on(info)
                continue
            exitcode = self._look()
            if exitcode is not None:
                self._let_signals_through()
                return exitcode

    def _look(self) -> int | None:
        """Return the exit code if it has ended; stop with it if its terminal has stopped it."""
        while True:
            flags = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            change = os.waitid(os.P_PID, self.pid, flags)
            if change is None:
                return None
            if change.si_code != _STOPPED:
                _, status = os.waitpid(self.pid, 0)
                return os.waitstatus_to_exitcode(status)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
            if change.si_status in _BY_TERMINAL:
                os.kill(os.getpid(), signal.SIGSTOP)

    def _pass_on(self, info: signal.struct_siginfo) -> None:
        if info.si_signo == signal.SIGCONT:
            # A shell continues the whole group; a second signal would be one too many.
            if process_state.is_stopped(self.pid):
                os.kill(self.pid, signal.SIGCONT)
        elif info.si_code != _SENT_BY_KERNEL:
            with contextlib.suppress(OSError):  # a program that is another user's by now (sudo)
                os.kill(self.pid, info.si_signo)

    def still_running(self) -> list[int]:
        """Return what descends from it and runs on, after its end."""
        return leftovers.busy_processes(self._mark)

    def _let_signals_through(self) -> None:
        """Let signals do what they do, but for those that came meanwhile."""
        while signal.sigtimedwait(_ALL, 0) is not None:
            pass
        if self._on_child is not None:
            signal.signal(signal.SIGCHLD, self._on_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def end_like(exitcode: int) -> int:
    """End this process as a program has ended: by its signal, or return its exit status.

    Where this process cannot die of the signal (the first one of a container), the status is that
    of a shell.
    """
    if exitcode >= 0:
        return exitcode
    number = -exitcode
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return _SHELL_SIGNAL_BASE + number
