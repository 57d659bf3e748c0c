"""How a function is called in a child, and its outcome sent back; ``run.py`` takes it there."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import cloudpickle

from pytest_cudafork.compat import cloudpickle_internals, standard_library, tracebacks
from pytest_cudafork.compat.unpatched import gc, os, traceback
from pytest_cudafork.errors import ChildError
from pytest_cudafork.patch.applying.inherited import apply_inherited
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.protocol import (
    caught_warnings,
    exception_parts,
    messages,
    unpicklable,
)

_LONGEST_REPR = 2000

_loading: tuple[str, ...] = ()
"""The functions for whose calls modules are imported now: here, and in those that started this."""


def loading_too(fn: Callable[..., Any], method: str) -> list[str]:
    """Return the functions for whose calls modules are imported, with one that is called now.

    Raises:
        ChildError: It is one of them already: its module calls it when it is imported.

    """
    name = getattr(fn, "__qualname__", None)
    if name is None:
        return [*_loading]
    full = f"{getattr(fn, '__module__', '')}.{name}"
    if full in _loading:
        raise ChildError(
            f"{name} is called while a module is imported that its own process ({method}) has to "
            "import: each process would start another one, without end. Call it in a function or "
            "a fixture, or move it to a module that calls nothing when it is imported."
        )
    return [*_loading, full]


def run_forked(
    channel: Channel,
    stacks_fd: int,
    call: Callable[[], Any],
) -> NoReturn:
    """Run ``call`` in this freshly forked process and end it; never returns into the parent's code.

    The warning filters are those of the forking thread, as they were.
    """
    status = EXIT_LOST
    try:
        child.forget_parent_exit_work()
        child.prepare(stacks_fd)
        child.adopt_streams()
        standard_library.tell_of_ignored_errors()
        standard_library.show_log()
        status = _run(channel, call)
    except BaseException as error:
        sys.stderr.write(child.text_of(error))
    finally:
        channel.leave_if_not_mine()
        child.leave(status, channel)


def run_pickled(task: child.Task) -> int:
    """Load a function and call it; the entry point of a call in another interpreter."""
    global _loading
    channel = task.the_channel()
    child.adopt_streams()
    _loading = tuple(task.data.get("loading", ()))
    try:
        apply_inherited()  # this may be the child of a server that was there before them
        filters = [cloudpickle.loads(one) for one in cloudpickle.loads(task.data["filters"])]
        fn, args, kwargs = cloudpickle.loads(task.data["payload"])
    except BaseException as error:
        channel.send(messages.NotLoaded(traceback_text(error)))
        return 0
    finally:
        _loading = ()
    gc.enable()  # it was off while modules were imported
    warnings.resetwarnings()  # which also makes every module look at the filters again
    warnings.filters.extend(filters)  # type: ignore[attr-defined]
    return _run(channel, lambda: fn(*args, **kwargs))


def _run(channel: Channel, call: Callable[[], Any]) -> int:
    """Call, and send the warnings and then the one outcome; return the exit status."""
    outcome: messages.Message
    with warnings.catch_warnings(record=True) as caught:
        try:
            result = _flushed(call)
        except SystemExit as error:
            outcome = messages.Exited(_exit_code(error), traceback_text(error))
        except BaseException as error:
            outcome = pack_exception(error)
        else:
            outcome = pack_result(result)
    channel.leave_if_not_mine()
    child.flush_streams()
    if caught:
        packed = [caught_warnings.pack(one).__dict__ for one in caught]
        channel.send(messages.CaughtWarnings(packed))
    channel.send(outcome)
    return 0


def _flushed(call: Callable[[], Any]) -> Any:
    """Call, and bring out what it has written: to pack what it gives may hang, or kill."""
    try:
        return call()
    finally:
        child.flush_streams()


def _exit_code(error: SystemExit) -> int | str | None:
    code = error.code
    return code if code is None or isinstance(code, int | str) else repr(code)


def pack_result(result: Any) -> messages.Returned:
    """Return the message for a result; one that does not pickle is told by its repr."""
    try:
        return messages.Returned(exception_parts.dumps(result), short_repr(result))
    except BaseException as error:  # pickling runs the object's own code, which may raise anything
        return messages.Returned(None, short_repr(result), unpicklable.reason(error, result))


def pack_exception(error: BaseException) -> messages.Raised:
    """Return the message for an exception: its pickle if it has one, its traceback."""
    message = messages.Raised(
        repr=short_repr(error),
        type=f"{type(error).__module__}.{type(error).__qualname__}",
        traceback=traceback_text(error),
        outcome=_outcome_name(error),
    )
    if message.outcome:
        parts = exception_parts.parts_of(error)[1:]
        return message.changed(parts=cloudpickle_internals.dumps(parts))
    try:
        return message.changed(pickled=exception_parts.dumps(error))
    except BaseException as reason:  # the exception's own code decides what it raises here
        return message.changed(why=unpicklable.reason(reason, error))


def _outcome_name(error: BaseException) -> str:
    """Return the class name of a skip, xfail, fail or exit of pytest, else "".

    These classes say that they live in ``builtins``, where no pickle finds them.
    """
    pytest: Any = sys.modules.get("pytest")
    functions = () if pytest is None else (pytest.skip, pytest.fail, pytest.xfail, pytest.exit)
    return next((one.Exception.__name__ for one in functions if one.Exception is type(error)), "")


def short_repr(value: Any) -> str:
    """Return the repr, cut to a length that fits a message; a broken one is named as such."""
    try:
        text = repr(value)
    except BaseException as error:  # a broken __repr__ must not hide the result's failure
        return f"<{type(value).__qualname__} object whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}..."


def traceback_text(error: BaseException) -> str:
    """Format the traceback without the frames of this package."""
    here = os.path.dirname(os.path.dirname(__file__))
    tb = tracebacks.without_outer(error.__traceback__, lambda filename: filename.startswith(here))
    try:
        return "".join(traceback.format_exception(type(error), error, tb or error.__traceback__))
    except BaseException as reason:  # a broken __str__
        return f"{type(error).__qualname__} (its text raises {type(reason).__name__})"
