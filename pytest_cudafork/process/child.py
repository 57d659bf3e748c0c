"""What every child does first and last, whichever way it was started, and the job in between.

A job is the name of a function, "package.module:function", which is looked up in the child and
called with a ``Task``. So nothing here knows what the jobs are.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

from pytest_cudafork.compat import debuggers, standard_library, written_in_c
from pytest_cudafork.compat.unpatched import (
    contextlib,
    ctypes,
    faulthandler,
    io,
    os,
    signal,
    time,
    traceback,
)
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.protocol import frames, messages, sockets
from pytest_cudafork.process.protocol.messages import Descriptor
from pytest_cudafork.process.shared_mailbox import SharedMailbox
from pytest_cudafork.settings.environment import BREAKPOINT, value

_PR_SET_PDEATHSIG = 1
_TRACKER_SECONDS = 5.0


def prepare(stacks_fd: int) -> None:
    """Make this process a child that can be ended as a whole and that tells its stacks.

    It leads a process group of its own, dies with the thread that started it, reads nothing from
    the terminal, writes to it line by line, and writes the stacks of all threads to ``stacks_fd``
    on a fatal signal.
    """
    with contextlib.suppress(OSError):  # the parent may have done it already
        os.setpgid(0, 0)
    die_with_parent()
    signal.set_wakeup_fd(-1)
    written_in_c.set_signal_handler(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    debuggers.refuse(lambda: value(BREAKPOINT))
    _write_line_by_line(sys.__stdout__)
    arm_stacks(stacks_fd)


def arm_stacks(stacks_fd: int) -> None:
    """Send the stacks of all threads to ``stacks_fd`` on a fatal signal, SIGABRT among them.

    Also where a library has put a handler of its own in place of faulthandler's (tvm_ffi does so
    when it is imported): while it takes itself for enabled, faulthandler does not look.
    """
    with contextlib.suppress(OSError, ValueError):  # the test closed the descriptor
        os.fstat(stacks_fd)
        faulthandler.disable()
        standard_library.write_python_stacks(stacks_fd)


def die_with_parent(yes: bool = True) -> None:
    """Ask the kernel to kill this process when the thread that started it ends, or not to."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # a libc without prctl: not Linux's own
        _prctl()(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if yes else 0, 0, 0, 0)


@functools.cache
def _prctl() -> Any:
    """Look up the function once."""
    return ctypes.CDLL(None).prctl


def prepare_for_forks() -> None:
    """Look up now what every child that is forked from this process would look up."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            _prctl()


def forget_parent_exit_work() -> None:
    """Drop what the parent registered for its own end, after a fork.

    Its atexit functions must not run here, and ``multiprocessing`` must not take the parent's
    children for ours: it would terminate the daemons among them when we end.
    """
    standard_library.clear_exit_functions()
    standard_library.forget_multiprocessing_children()
    standard_library.let_logging_end()


class SaysGoodbye(Protocol):
    """What takes the last message to the parent: a channel, or the connection of a fork server."""

    def send(self, message: messages.Message, /) -> None:
        """Tell the parent."""


def leave(status: int, channel: SaysGoodbye | None = None) -> NoReturn:
    """End this process: what was registered for its end, its streams, and no more.

    Where there is a channel, the parent is told when nothing is left that could fail, so that it
    need not wait while the kernel takes the process apart.

    The interpreter is not taken apart: after a fork that is not ours to do, and the libraries of a
    GPU are known to crash there.
    """
    try:
        standard_library.tell_of_ignored_errors()
        standard_library.end_process_pools()
        standard_library.run_exit_functions()
        _end_resource_tracker()
        flush_streams()
        if channel is not None and status == 0:
            with contextlib.suppress(OSError):  # the parent is gone, or the test closed it
                channel.send(messages.Done())
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


def text_of(error: BaseException) -> str:
    """Return the traceback of an error as text; without its lines where they cannot be read."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as reason:  # a function that reads source files is the test's own by now
        places = [
            f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        name = type(error).__qualname__
        return f"{''.join(places)}{name}: {error} (shown without its lines: {reason!r})\n"


def _write_line_by_line(stream: io.TextIOBase | None) -> None:
    """Let a line be written when it is complete, also to a pipe or file.

    What is not is lost if the process dies, and comes after what the parent writes meanwhile.
    """
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.reconfigure(line_buffering=True)


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
        raw = io.open(fd, "wb", buffering=0, closefd=False)  # lives as long as the process
        # nothing is kept back: the process may be killed at any time
        stream = io.TextIOWrapper(raw, encoding, "backslashreplace", write_through=True)
        setattr(sys, name, stream)


class Task(NamedTuple):
    """What the entry point of a job gets; it returns the exit status of the process.

    Attributes:
        data: What the parent sent for it.
        stacks_fd: The file for stacks, written on a fatal signal.
        channel: The child's end of the socket to its parent; None: the job runs unattended.
        mailbox: Where an unattended job leaves its result.
        prepared: What the fork server has got ready (``fork_server.Prepared``), if there is one.

    """

    data: Any
    stacks_fd: int
    channel: Channel | None = None
    mailbox: SharedMailbox | None = None
    prepared: Any = None

    def the_channel(self) -> Channel:
        """Return the channel of a job that is attended.

        Raises:
            ValueError: It is not.

        """
        if self.channel is None:
            raise ValueError("this job needs a parent that attends to it")
        return self.channel


def look_up(entry: str) -> Callable[..., Any]:
    """Return the function "package.module:function"."""
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def read_request(fd: int) -> dict[str, Any]:
    """Read the whole request from a memory file and close it."""
    with io.open(fd, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = frames.loads(file.read())
    return request


def run_request(channel_fd: int, request_fd: int, stacks_fd: int) -> NoReturn:
    """Do the job of a request in this fresh interpreter, which was started for it, and end."""
    for fd in (channel_fd, request_fd, stacks_fd):
        os.set_inheritable(fd, False)
    channel: Channel | None = None
    status = EXIT_LOST
    try:
        prepare(stacks_fd)
        request = read_request(request_fd)
        leftovers.mark_process(request["cookie"])
        channel = Channel(sockets.Endpoint(channel_fd), request["cookie"])
        sys.path[:] = request["path"]
        sys.argv[:] = request["argv"]
        status = look_up(request["entry"])(Task(request["data"], stacks_fd, channel))
    except BaseException as error:
        sys.stderr.write(text_of(error))
    finally:
        if channel is not None:
            channel.leave_if_not_mine()
        leave(status, channel)


def ready_job(
    channel: Channel, job: messages.Job, stacks_fd: int, prepared: Any
) -> Callable[[], int]:
    """Get this process, which was forked for a job, ready; return what does it.

    That returns the exit status, and is called by the caller, who has the shorter stack. With a
    request comes the world around the job: directory, environment, ``sys.path``.
    """
    fds = dict(zip(job.descriptors, channel.descriptors, strict=True))
    channel.descriptors.clear()
    for number, name in ((1, Descriptor.STDOUT), (2, Descriptor.STDERR)):
        if name in fds:
            fd = fds.pop(name)
            os.dup2(fd, number)
            os.close(fd)
    data = None
    if Descriptor.REQUEST in fds:
        request = read_request(fds.pop(Descriptor.REQUEST))
        data = request["data"]
        sys.path[:] = request["path"]
        take_over(request["surroundings"])
    return functools.partial(look_up(job.entry), Task(data, stacks_fd, channel, prepared=prepared))


def environment(env: Mapping[str, str]) -> bytes:
    """Return this process's environment and ``env`` in one piece, as the kernel keeps it; sorted.

    Equal environments give equal bytes.
    """
    variables = standard_library.variables_in_bytes(os.environ)
    if env:
        variables = {**variables, **{os.fsencode(k): os.fsencode(v) for k, v in env.items()}}
    return b"\0".join(sorted([b"%b=%b" % pair for pair in variables.items()]))


def surroundings(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what a test finds around itself in this process, for ``take_over``.

    ``env`` is added to the environment.
    """
    try:
        cwd = os.getcwd()
    except OSError:  # it was removed; the kernel still knows it
        cwd = f"/proc/{os.getpid()}/cwd"
    return {
        "environ": environment(env),
        "cwd": cwd,
        "umask": umask(),
        "argv": [str(arg) for arg in sys.argv],
    }


def umask() -> int:
    """Return the umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class Surroundings:
    """What ``surroundings`` returned in the parent, for the tests of one order.

    ``environment_here`` is what ``environment`` returned here, if that was asked before: mostly
    there is nothing to change.
    """

    def __init__(self, surroundings: dict[str, Any], environment_here: bytes = b"") -> None:
        self._said = surroundings
        self._environ: dict[bytes, bytes] | None = None
        if surroundings["environ"] != environment_here:
            variables = surroundings["environ"].split(b"\0")
            self._environ = dict(variable.split(b"=", 1) for variable in variables if variable)

    def take_over(self) -> None:
        """Make this process's environment, directory, umask and arguments those of the parent."""
        environ = self._environ
        if environ is not None and environ != standard_library.variables_in_bytes(os.environ):
            here = dict(os.environb)
            for key in here.keys() - environ.keys():
                del os.environb[key]
            for key, value in environ.items():
                if here.get(key) != value:
                    os.environb[key] = value
        os.chdir(self._said["cwd"])
        os.umask(self._said["umask"])
        sys.argv[:] = self._said["argv"]


def take_over(surroundings: dict[str, Any], environment_here: bytes = b"") -> None:
    """Make this process's surroundings those of the parent, once (see ``Surroundings``)."""
    Surroundings(surroundings, environment_here).take_over()
