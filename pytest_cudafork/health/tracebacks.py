"""Lets go of what the frames of a failed test hold, so that its tensors do not stay on the GPU."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator

from pytest_cudafork.compat.unpatched import contextlib, traceback

_NEVER_SUSPENDED = sys.version_info >= (3, 13)
"""From here on, to clear the frame of a suspended generator is an error, and does not end it."""
_MAY_BE_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def release(errors: Iterable[BaseException]) -> None:
    """Clear the local variables of all frames that the errors' tracebacks hold.

    The errors, their lines and their text stay as they are. Frames that still run keep their
    variables, as do (before Python 3.13) those of generators and coroutines, which may be
    suspended.
    """
    for error in _with_causes(errors):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if _NEVER_SUSPENDED or not frame.f_code.co_flags & _MAY_BE_SUSPENDED:
                with contextlib.suppress(RuntimeError):  # it still runs
                    frame.clear()
                    frame.f_locals  # noqa: B018  # before 3.13 a copy, which this brings up to date


def _with_causes(errors: Iterable[BaseException]) -> Iterator[BaseException]:
    """Yield the errors, what they were raised from or beside, and those in groups; each once."""
    waiting, seen = list(errors), set()
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        inner = getattr(error, "exceptions", ())
        members = [*inner] if isinstance(inner, tuple | list) else []
        further = [error.__cause__, error.__context__, *members]
        waiting += [one for one in further if isinstance(one, BaseException)]
