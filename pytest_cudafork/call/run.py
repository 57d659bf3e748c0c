"""Calling one function in a child process and getting its outcome back.

It stands behind the fixtures ``run_forked``, ``run_spawned`` and ``run_forkserver``.

Covered: the result or exception (its type, attributes and the child's traceback as ``__cause__``),
pytest's own outcomes, warnings, output on descriptors 1 and 2, every way to die, the time limit,
descendants. Not covered: ``__context__`` and ``__cause__`` of the child's exception as objects (the
text has them), warnings of a child that crashes, descendants that left the child's process group
when it ended by itself, and a CUDA tensor as the result (loading it initializes CUDA here).
"""

from __future__ import annotations

import atexit
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_cudafork.call import in_child, pickling
from pytest_cudafork.compat.unpatched import contextlib, os, pickle, signal
from pytest_cudafork.errors import (
    ChildCrashed,
    ChildError,
    ChildExit,
    ChildTimeout,
    RemoteTraceback,
)
from pytest_cudafork.process import exit_status, launch, supervision
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.fork_server_client import ForkServerClient
from pytest_cudafork.process.protocol import caught_warnings, frames, messages
from pytest_cudafork.process.protocol.exception_parts import rebuilt
from pytest_cudafork.process.protocol.messages import Descriptor
from pytest_cudafork.process.protocol.server_messages import ServerSettings
from pytest_cudafork.process.signals import ChildSignal
from pytest_cudafork.settings import METHODS
from pytest_cudafork.settings.arguments import check_time_limit

if TYPE_CHECKING:
    from pytest_cudafork.fixtures import RunInChild

_CALL = "pytest_cudafork.call.in_child:run_pickled"
"""The job of a child that was not forked from this process."""

Observer = Callable[[str, int], None]
"""Called with ("started", pid) and ("ended", pid) of the child."""
ShownCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function and its arguments."""


class Call:
    """One call of a function in a child process, from its start to its result.

    Args:
        method: "fork" (of the calling process), "spawn" (a fresh interpreter) or "forkserver".
        fn: Any callable; closures and local functions too.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        timeout: The time limit in seconds, the start of the child and what is registered with
            ``atexit`` there included; None: no limit.
        server: The fork server to use; only needed for "forkserver".
        observer: Told when the child starts and ends.
        caretaker: Who ends what the child leaves if this process dies first; None: nobody.
        env: Variables to add to its environment, before anything of the call is imported there.
        shown: The call that messages speak of, if it is another one.

    """

    def __init__(
        self,
        method: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        timeout: float | None,
        server: ForkServerClient | None = None,
        observer: Observer | None = None,
        caretaker: Caretaker | None = None,
        env: Mapping[str, str] | None = None,
        shown: ShownCall | None = None,
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"{method!r} is no start method: use one of {', '.join(METHODS)}")
        if not callable(fn):
            raise TypeError(f"{fn!r} is no function: give one, and its arguments after it")
        check_time_limit(timeout)
        self._method = method
        self._fn, self._args, self._kwargs = fn, args, kwargs or {}
        self._timeout = timeout
        self._server = server
        self._observer = observer
        self._caretaker = caretaker
        self._env = dict(env or {})
        self._shown = shown or (fn, args, self._kwargs)
        self._name = getattr(self._shown[0], "__qualname__", repr(self._shown[0]))
        self._outcome = _Outcome()
        self._running: launch.Running | None = None
        self.sigchld = ChildSignal()
        """To be kept from the program from before the start to the end."""

    def run(self) -> Any:
        """Start the child, wait for its end and return its result.

        Raises:
            BaseException: What ``fn`` raised, with the child's traceback as its ``__cause__``.
            ChildExit: It called ``sys.exit`` or ended the process.
            ChildCrashed: It was killed by a signal, or failed after it had given its result.
            ChildTimeout: The time limit came first.
            ChildError: The call or its outcome cannot travel between processes, or no child
                started.
            CudaForkError: The fork guard refused the fork.

        """
        __tracebackhide__ = True
        with self.sigchld.kept():  # from the start on: the child may end at once
            try:
                self.start()
                ending = self.wait()
            except BaseException:  # as Ctrl-C between the two
                self.end()
                raise
        return self.result(ending)

    def start(self) -> None:
        """Start the child, which dies with the thread that does so.

        Raises:
            ChildError: The call cannot travel between processes, or no child started.
            CudaForkError: The fork guard refused the fork.

        """
        __tracebackhide__ = True
        try:
            self._running = running = self._start()
        except OSError as error:
            if error.errno is None:  # not the kernel's: what handles a signal has raised it
                raise
            text = f"no process could be started for {self._name} ({self._method}): {error}"
            raise ChildError(text) from error
        if self._observer is not None:
            self._observer("started", running.pid)

    def wait(self) -> supervision.Ending:
        """Wait for the end of the child, in any thread; whatever ends this early ends the child."""
        assert self._running is not None, "it was started"
        try:
            ending = supervision.Supervisor(self._running).watch(self._outcome.take, self._timeout)
        finally:
            if self._observer is not None:
                self._observer("ended", self._running.pid)
        assert ending is not None, "a watch that waits for the end has one"
        return ending

    def end(self) -> None:
        """End the child and reap it, if it was started and that was not done."""
        running, self._running = self._running, None
        if running is not None and running.is_open:
            supervision.Supervisor(running).kill()

    def kill(self) -> None:
        """End the child from another thread than the one that waits for it."""
        if self._running is not None:
            with contextlib.suppress(OSError):  # it is gone
                os.killpg(self._running.pid, signal.SIGKILL)

    def result(self, ending: supervision.Ending) -> Any:
        """Return what the function returned, or raise what it raised, or what became of it."""
        __tracebackhide__ = True
        _show_warnings(self._outcome.warnings)
        last = self._outcome.last
        error = _failure_of(ending, last, f"{self._name} ({self._method})", self._timeout)
        if error is not None:
            raise error
        return _unpack(last, self._name)

    def _start(self) -> launch.Running:
        __tracebackhide__ = True
        fn, args, kwargs, env = self._fn, self._args, self._kwargs, self._env
        if self._method == "fork":
            pickling.remember_classes(*self._shown)

            def call() -> Any:
                os.environ.update(env)
                return fn(*args, **kwargs)

            return launch.start_fork(
                lambda channel, stacks_fd: in_child.run_forked(channel, stacks_fd, call),
                begin=self.sigchld.end,
                caretaker=self._caretaker,
            )
        data = {
            "loading": in_child.loading_too(self._shown[0], self._method),
            "payload": pickling.dump_call(fn, args, kwargs, self._shown),
            "filters": pickling.dump_filters(),
        }
        if self._method == "spawn":
            return launch.start_spawn(_CALL, data, env, self._caretaker)
        if self._server is None:
            raise ValueError("method 'forkserver' needs the server argument: see server_of(config)")
        # which ends what its children leave by itself
        fds = {Descriptor.STDOUT: 1, Descriptor.STDERR: 2}
        return self._server.start_job(_CALL, data, fds, env)


_OUTCOMES = (messages.Returned, messages.Raised, messages.Exited, messages.NotLoaded)


class _Outcome:
    """Collects what the child says."""

    def __init__(self) -> None:
        self.warnings: list[messages.CaughtWarning] = []
        self.last: messages.Message | None = None

    def take(self, message: messages.Message, fds: list[int]) -> supervision.Said:
        """Take one message: warnings, the outcome, or that all is done.

        Raises:
            FrameError: A call says no such thing.

        """
        for fd in fds:  # a call sends none
            os.close(fd)
        if isinstance(message, messages.CaughtWarnings):
            self.warnings += message.each()
            return supervision.Said.MORE
        if isinstance(message, messages.Done):
            return supervision.Said.DONE
        if not isinstance(message, (*_OUTCOMES, messages.InternalError)):
            raise frames.FrameError(f"there are no messages of kind {message.kind!r}")
        self.last = message
        return supervision.Said.LEAVING


def _failure_of(
    ending: supervision.Ending, last: messages.Message | None, what: str, timeout: float | None
) -> ChildError | None:
    """Return the error for an end that gave no valid result, or None."""
    stacks = exit_status.where(ending.stacks, ending.native, ending.state, stuck=ending.stuck)
    if ending.timed_out:
        when = " after it gave a result" if ending.finished else ""
        return ChildTimeout(
            f"{what} did not end{when} within its time limit of {timeout:g} s and was killed."
            f"{stacks}",
            timeout,
            ending.stacks,
        )
    if ending.malformed:
        return ChildError(
            f"{what} sent something that is no message: {ending.malformed}. The child "
            f"{exit_status.describe(ending.exitcode)}; did it write to a descriptor it did "
            "not open?"
        )
    if ending.status_lost:
        when = "before" if last is None else "after"
        return ChildCrashed(f"{what}: the child {ending.status_lost}, {when} it gave a result")
    if last is None and ending.exitcode >= 0:
        how = exit_status.describe(ending.exitcode)
        lost = exit_status.lost(ending.exitcode, "the function")
        return ChildExit(
            f"{what}: the child {how} before it gave a result{lost}",
            ending.exitcode,
        )
    if ending.exitcode == 0 or ending.lingered:
        return None
    when = "before" if last is None else "after"
    return ChildCrashed(
        f"{what}: the child {exit_status.describe(ending.exitcode)} {when} it gave a "
        f"result{stacks}",
        ending.exitcode,
        exit_status.signal_name(ending.exitcode),
        ending.stacks,
    )


def _unpack(message: messages.Message | None, name: str) -> Any:
    """Return the result that a message holds, or raise what it says."""
    __tracebackhide__ = True
    match message:
        case messages.Returned():
            return _load_result(message, name)
        case messages.Raised():
            raise _load_exception(message, name) from RemoteTraceback(message.traceback)
        case messages.Exited():
            error = ChildExit(f"{name} called sys.exit({message.code!r})", message.code)
            raise error from RemoteTraceback(message.text)
        case messages.NotLoaded():
            raise ChildError(
                f"the child could not load {name}: something that it uses cannot be imported there"
            ) from RemoteTraceback(message.text)
        case messages.InternalError():
            raise ChildError(f"the child could not run {name}") from RemoteTraceback(message.text)
    raise AssertionError("an end without an outcome is a failure")


def _load_result(message: messages.Returned, name: str) -> Any:
    __tracebackhide__ = True
    if message.pickled is None:
        raise ChildError(
            f"the result of {name} cannot be sent back, because it does not pickle "
            f"({message.why}): {message.repr}. Return plain values."
        )
    try:
        return pickle.loads(message.pickled)
    except Exception as error:  # unpickling runs the object's own code
        raise ChildError(
            f"the result of {name} came back but cannot be read here "
            f"({type(error).__name__}: {error}): {message.repr}"
        ) from error


def _load_exception(message: messages.Raised, name: str) -> BaseException:
    """Return the child's exception, or one that tells about it if it cannot be rebuilt."""
    why = message.why
    try:
        if message.outcome:
            return _load_outcome(message)
        if message.pickled is not None:
            error = pickle.loads(message.pickled)
            if isinstance(error, BaseException):
                return error
    except Exception as reason:  # unpickling runs the exception's own code
        why = why or f"{type(reason).__name__}: {reason}"
    return ChildError(
        f"{name} raised {message.type}, which cannot be sent back ({why}): {message.repr}"
    )


def _load_outcome(message: messages.Raised) -> BaseException:
    """Return the skip, xfail, fail or exit of pytest that the child raised."""
    import pytest

    functions = (pytest.skip, pytest.fail, pytest.xfail, pytest.exit)
    kinds: dict[str, Any] = {one.Exception.__name__: one.Exception for one in functions}
    kind = kinds[message.outcome]
    error: BaseException = rebuilt(kind, *pickle.loads(message.parts or b""))
    return error


def _show_warnings(packed: list[messages.CaughtWarning]) -> None:
    """Issue the child's warnings here, at their own file and line.

    They have passed these very filters in the child, so they go straight to whoever shows or
    records warnings.
    """
    for one in packed:
        warning = caught_warnings.load(one)
        warnings.showwarning(
            warning.message,
            warning.category,
            warning.filename,
            warning.lineno,
            None,
            warning.line,
        )


def new_server() -> ForkServerClient:
    """Return a fork server for calls; it is started when it is first needed.

    Its children begin with nothing, and none of them is forked before it is asked for.
    """
    return ForkServerClient(ServerSettings)


def server_of(config: pytest.Config) -> ForkServerClient:
    """Return the session's fork server; it is not started by this, and closed at unconfigure."""
    server = config.stash.get(_SERVER, None)
    if server is None:
        server = config.stash[_SERVER] = new_server()
        config.add_cleanup(server.close)
    return server


_SERVER = pytest.StashKey[ForkServerClient]()


class Helpers(NamedTuple):
    """The processes that help with the calls of a process outside of any session."""

    server: ForkServerClient
    caretaker: Caretaker


def helpers_of_process() -> Helpers:
    """Return this process's; none is started by this, and they end with the process."""
    return _helpers(os.getpid())


@functools.cache
def _helpers(pid: int) -> Helpers:
    """Make those of a process; one that was forked from it has its own."""
    helpers = Helpers(new_server(), Caretaker())
    atexit.register(helpers.caretaker.close)
    atexit.register(helpers.server.close)
    return helpers


def caretaker_of(config: pytest.Config) -> Caretaker:
    """Return what looks after the session's calls; not started by this, ended at unconfigure."""
    caretaker = config.stash.get(_CARETAKER, None)
    # That of the process from which an isolated test was forked does not look after this one.
    if caretaker is None or not caretaker.is_for_this_process:
        caretaker = config.stash[_CARETAKER] = Caretaker()
        config.add_cleanup(caretaker.close)
    return caretaker


_CARETAKER = pytest.StashKey[Caretaker]()


def runner(config: pytest.Config, method: str) -> RunInChild:
    """Return the function behind ``run_forked``, ``run_spawned`` or ``run_forkserver``."""
    server = server_of(config) if method == "forkserver" else None
    caretaker = caretaker_of(config)

    def run(
        fn: Callable[..., Any], /, *args: Any, timeout: float | None = 60.0, **kwargs: Any
    ) -> Any:
        __tracebackhide__ = True
        call = Call(method, fn, args, kwargs, timeout=timeout, server=server, caretaker=caretaker)
        return call.run()

    return run
