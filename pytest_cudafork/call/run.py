"""Owns calling one function in a child process and getting its outcome back. Runs in the parent.

It stands behind the fixtures ``run_forked``, ``run_spawned`` and ``run_forkserver`` and does not
know of tests or reports.

Covered: the result or exception (its type, attributes and the child's traceback as ``__cause__``),
pytest's own outcomes, warnings, output on descriptors 1 and 2, every way to die, the time limit,
descendants. Not covered: ``__context__`` and ``__cause__`` of the child's exception as objects (the
text has them), warnings of a child that crashes, descendants that left the child's process group
when it ended by itself, and a CUDA tensor as the result (loading it initializes CUDA here).
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

from pytest_cudafork.call import in_child, pickling
from pytest_cudafork.call.forkserver import ForkServer
from pytest_cudafork.errors import (
    ChildCrashed,
    ChildError,
    ChildExit,
    ChildTimeout,
    RemoteTraceback,
)
from pytest_cudafork.isolate.session import received
from pytest_cudafork.process import exit_status, launch, supervision, wire

METHODS = ("fork", "forkserver", "spawn")

Observer = Callable[[str, int], None]
"""Called with ("started", pid) and ("ended", pid) of the child."""


def run_in_child(
    method: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    timeout: float | None,
    server: ForkServer | None = None,
    observer: Observer | None = None,
) -> Any:
    """Call ``fn(*args, **kwargs)`` in a child process and return its result.

    Args:
        method: "fork" (of the calling process), "spawn" (a fresh interpreter) or "forkserver".
        fn: Any callable; closures and local functions too.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        timeout: The time limit in seconds, the start of the child included; None: no limit.
        server: The fork server to use; only needed for "forkserver".
        observer: Told when the child starts and ends.

    Raises:
        BaseException: What ``fn`` raised, with the child's traceback as its ``__cause__``.
        ChildExit: It called ``sys.exit`` or ended the process.
        ChildCrashed: It was killed by a signal, or failed after it had given its result.
        ChildTimeout: The time limit came first.
        ChildError: The call or its outcome cannot travel between processes, or no child started.
        CudaForkError: The fork guard refused the fork.

    """
    __tracebackhide__ = True
    if method not in METHODS:
        raise ValueError(f"{method!r} is no start method: use one of {', '.join(METHODS)}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: a time limit is above 0 seconds, or None for none")
    kwargs = kwargs or {}
    outcome = _Outcome()
    running = _start(method, fn, args, kwargs, server)
    if observer is not None:
        observer("started", running.pid)
    try:
        ending = supervision.Supervisor(running).watch(outcome.take, timeout)
    finally:
        if observer is not None:
            observer("ended", running.pid)
    assert ending is not None, "a watch that waits for the end has one"
    _show_warnings(outcome.warnings)
    name = getattr(fn, "__qualname__", repr(fn))
    error = _failure_of(ending, outcome.last, f"{name} ({method})", timeout)
    if error is not None:
        raise error
    return _unpack(outcome.last, name)


def _start(
    method: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    server: ForkServer | None,
) -> launch.Running:
    if method == "fork":
        pickling.remember_classes(fn, args, kwargs)
        return launch.start_fork(
            lambda channel, stacks_fd: in_child.run_forked(
                channel, stacks_fd, lambda: fn(*args, **kwargs)
            )
        )
    request = launch.base_request("call")
    request["payload"] = pickling.dump_call(fn, args, kwargs)
    request["filters"] = pickling.dump_filters()
    if method == "spawn":
        return launch.start_spawn(request)
    if server is None:
        raise ValueError("method 'forkserver' needs the server argument: see server_of(config)")
    return server.start_child(request)


class _Outcome:
    """Collects what the child says."""

    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []
        self.last: wire.Message | None = None

    def take(self, message: wire.Message, fds: list[int]) -> supervision.Said:
        """Take one message; every kind but the warnings is the last."""
        for fd in fds:  # a call sends none
            os.close(fd)
        try:
            received.check_message(message)
        except (LookupError, TypeError) as error:
            raise wire.WireError(f"a message of kind {message['kind']!r}: {error!r}") from error
        if message["kind"] == "warnings":
            self.warnings += message["warnings"]
            return supervision.Said.MORE
        self.last = message
        return supervision.Said.LEAVING


def _failure_of(
    ending: supervision.Ending, last: wire.Message | None, what: str, timeout: float | None
) -> ChildError | None:
    """Return the error for an end that gave no valid result, or None."""
    stacks = exit_status.where(ending.stacks, ending.native, ending.state, stuck=ending.stuck)
    if ending.timed_out:
        return ChildTimeout(
            f"{what} did not end within its time limit of {timeout:g} s and was killed.{stacks}",
            timeout,
            ending.stacks,
        )
    if ending.malformed:
        return ChildError(
            f"{what} sent something that is no message: {ending.malformed}. The child "
            f"{exit_status.describe(ending.exitcode)}; did it write to a descriptor it did "
            "not open?"
        )
    if last is None and ending.exitcode >= 0:
        return ChildExit(
            f"{what}: the child {exit_status.describe(ending.exitcode)} before it gave a result",
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


def _unpack(message: wire.Message | None, name: str) -> Any:
    """Return the result that a message holds, or raise what it says."""
    __tracebackhide__ = True
    assert message is not None, "an end without a message is a failure"
    kind = message["kind"]
    if kind == "returned":
        return _load_result(message, name)
    if kind == "raised":
        raise _load_exception(message, name) from RemoteTraceback(message["traceback"])
    if kind == "exit":
        error = ChildExit(f"{name} called sys.exit({message['code']!r})", message["code"])
        raise error from RemoteTraceback(message["text"])
    if kind == "not_loaded":
        raise ChildError(
            f"the child could not load {name}: something that it uses cannot be imported there"
        ) from RemoteTraceback(message["text"])
    raise ChildError(f"{name}: the child sent a message of unknown kind {kind!r}")


def _load_result(message: wire.Message, name: str) -> Any:
    __tracebackhide__ = True
    if message["pickled"] is None:
        raise ChildError(
            f"the result of {name} cannot be sent back, because it does not pickle "
            f"({message['why']}): {message['repr']}. Return plain values."
        )
    try:
        return pickle.loads(message["pickled"])
    except Exception as error:  # unpickling runs the object's own code
        raise ChildError(
            f"the result of {name} came back but cannot be read here "
            f"({type(error).__name__}: {error}): {message['repr']}"
        ) from error


def _load_exception(message: wire.Message, name: str) -> BaseException:
    """Return the child's exception, or one that tells about it if it cannot be rebuilt."""
    why = message["why"]
    try:
        if message["outcome"]:
            return _load_outcome(message)
        if message["pickled"] is not None:
            error = pickle.loads(message["pickled"])
            if isinstance(error, BaseException):
                return error
        elif message["parts"] is not None:
            kind, args, attributes = pickle.loads(message["parts"])
            error = kind.__new__(kind, *args)
            error.__dict__.update(attributes)
            if isinstance(error, BaseException):
                return error
    except Exception as reason:  # unpickling runs the exception's own code
        why = why or f"{type(reason).__name__}: {reason}"
    return ChildError(
        f"{name} raised {message['type']}, which cannot be sent back ({why}): {message['repr']}"
    )


def _load_outcome(message: wire.Message) -> BaseException:
    """Return the skip, xfail, fail or exit of pytest that the child raised."""
    import pytest

    functions = (pytest.skip, pytest.fail, pytest.xfail, pytest.exit)
    kinds: dict[str, Any] = {one.Exception.__name__: one.Exception for one in functions}
    kind = kinds[message["outcome"]]
    args, attributes = pickle.loads(message["parts"])
    error: BaseException = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def _show_warnings(packed: list[dict[str, Any]]) -> None:
    """Issue the child's warnings here, at their own file and line.

    They have passed these very filters in the child, so they go straight to whoever shows or
    records warnings.
    """
    for one in packed:
        warning = load_warning(one)
        warnings.showwarning(
            warning.message,
            warning.category,
            warning.filename,
            warning.lineno,
            None,
            warning.line,
        )


def load_warning(packed: dict[str, Any]) -> warnings.WarningMessage:
    """Return a warning that came from a child; it looks the same if it cannot be loaded here."""
    try:
        message = pickle.loads(packed["pickled"])
        if not isinstance(message, Warning):
            raise TypeError(f"{message!r} is no warning")
    except Exception:  # its text is what counts
        message = _named_warning(packed["type"], packed["text"])
    return warnings.WarningMessage(
        message, type(message), packed["filename"], packed["lineno"], line=packed["line"]
    )


def _named_warning(name: str, text: str) -> Warning:
    """Return a warning with the class name and the text of one that is somewhere else."""
    module, _, name = name.rpartition(".")
    known = getattr(sys.modules.get(module), name, None)
    base = known if isinstance(known, type) and issubclass(known, Warning) else Warning
    body = {"__module__": module, "__init__": lambda self: None, "__str__": lambda self: text}
    warning: Warning = type(name, (base,), body)()
    return warning
