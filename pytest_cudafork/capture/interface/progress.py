"""What a check of a graph is at, for whoever wants to show it while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar

from pytest_cudafork.capture.interface.meanwhile import variable_set

_SHOW: ContextVar[Callable[[str], None] | None] = ContextVar("cudafork_progress", default=None)


def shown_by(show: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """Have what checks are at shown by a function, for the length of a ``with``."""
    return variable_set(_SHOW, show)


def now_at(what: str) -> None:
    """Say what a check is at: a few words, which stand until it says others."""
    show = _SHOW.get()
    if show is not None:
        show(what)
