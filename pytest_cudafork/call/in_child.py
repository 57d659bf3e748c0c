"""Owns how a function is called in a child and its outcome sent back. Runs in the child.

It imports nothing of the parent side; what the messages become there is for ``call.py``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from pytest_cudafork.process import child

_LONGEST_REPR = 2000


def run_forked(
    channel: child.Channel,
    stacks_fd: int,
    call: Callable[[], Any],
) -> NoReturn:
    """Run ``call`` in this freshly forked process and end it; never returns into the parent's code.

    The warning filters are those of the forking thread, as they were.
    """
    status = child.EXIT_LOST
    try:
        child.forget_parent_exit_work()
        child.prepare(stacks_fd)
        child.adopt_streams()
        status = _run(channel, call)
    except BaseException:
        traceback.print_exc()
    finally:
        channel.leave_if_not_mine()
        child.leave(status)


def run_pickled(channel: child.Channel, request: dict[str, Any]) -> int:
    """Load the function of a request and run it; return the exit status."""
    import cloudpickle

    try:
        filters = [cloudpickle.loads(one) for one in cloudpickle.loads(request["filters"])]
        fn, args, kwargs = cloudpickle.loads(request["payload"])
    except BaseException as error:
        channel.send("not_loaded", text=_traceback_text(error))
        return 0
    gc.enable()  # it was off while modules were imported
    warnings.resetwarnings()  # which also makes every module look at the filters again
    warnings.filters.extend(filters)  # type: ignore[attr-defined]
    return _run(channel, lambda: fn(*args, **kwargs))


def _run(channel: child.Channel, call: Callable[[], Any]) -> int:
    """Call, and send the warnings and then the one outcome; return the exit status."""
    outcome: dict[str, Any]
    with warnings.catch_warnings(record=True) as caught:
        try:
            result = call()
        except SystemExit as error:
            outcome = {"kind": "exit", "code": _exit_code(error), "text": _traceback_text(error)}
        except BaseException as error:
            outcome = {"kind": "raised", **pack_exception(error)}
        else:
            outcome = {"kind": "returned", **pack_result(result)}
    channel.leave_if_not_mine()
    child.flush_streams()
    if caught:
        channel.send("warnings", warnings=[pack_warning(one) for one in caught])
    channel.send(outcome.pop("kind"), **outcome)
    return 0


def _exit_code(error: SystemExit) -> int | str | None:
    code = error.code
    return code if code is None or isinstance(code, int | str) else repr(code)


def pack_result(result: Any) -> dict[str, Any]:
    """Return the message for a result; one that does not pickle is told by its repr."""
    import cloudpickle

    try:
        return {"pickled": cloudpickle.dumps(result), "repr": short_repr(result)}
    except Exception as error:  # pickling runs the object's own code, which may raise anything
        return {"pickled": None, "repr": short_repr(result), "why": _one_line(error)}


def pack_exception(error: BaseException) -> dict[str, Any]:
    """Return the message for an exception: its pickle if it has one, its parts, its traceback.

    The parts (class, ``args``, attributes) serve where the class's ``__init__`` does not take
    ``args``, which a plain pickle would call.
    """
    import cloudpickle

    message: dict[str, Any] = {
        "repr": short_repr(error),
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "traceback": _traceback_text(error),
        "pickled": None,
        "parts": None,
        "outcome": _outcome_name(error),
        "why": "",
    }
    if message["outcome"]:
        message["parts"] = cloudpickle.dumps((error.args, dict(error.__dict__)))
        return message
    try:
        pickled = cloudpickle.dumps(error)
        if type(pickle.loads(pickled)) is type(error):
            message["pickled"] = pickled
            return message
    except Exception as reason:  # the exception's own code decides what it raises here
        message["why"] = _one_line(reason)
    with contextlib.suppress(Exception):  # then the text has to do; "why" says the reason
        message["parts"] = cloudpickle.dumps((type(error), error.args, dict(error.__dict__)))
    return message


def _outcome_name(error: BaseException) -> str:
    """Return the class name of a skip, xfail, fail or exit of pytest, else "".

    These classes say that they live in ``builtins``, where no pickle finds them.
    """
    pytest: Any = sys.modules.get("pytest")
    functions = () if pytest is None else (pytest.skip, pytest.fail, pytest.xfail, pytest.exit)
    return next((one.Exception.__name__ for one in functions if one.Exception is type(error)), "")


def pack_warning(caught: warnings.WarningMessage) -> dict[str, Any]:
    """Return the plain message for one recorded warning."""
    import cloudpickle

    warning = caught.message
    pickled = None
    with contextlib.suppress(Exception):  # then the text has to do
        pickled = cloudpickle.dumps(warning)
        pickle.loads(pickled)
    return {
        "pickled": pickled,
        "type": f"{caught.category.__module__}.{caught.category.__qualname__}",
        "text": str(warning),
        "filename": str(caught.filename),
        "lineno": int(caught.lineno),
        "line": caught.line,
    }


def short_repr(value: Any) -> str:
    """Return the repr, cut to a length that fits a message; a broken one is named as such."""
    try:
        text = repr(value)
    except Exception as error:  # a broken __repr__ must not hide the result's failure
        return f"<{type(value).__qualname__} object whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}..."


def _one_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _traceback_text(error: BaseException) -> str:
    """Format the traceback without the frames of this package."""
    here = os.path.dirname(os.path.dirname(__file__))
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(here):
        tb = tb.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, tb or error.__traceback__))
    except Exception as reason:  # a broken __str__
        return f"{type(error).__qualname__} (its text raises {type(reason).__name__})"
