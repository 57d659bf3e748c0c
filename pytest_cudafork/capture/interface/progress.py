"""What a check of a graph is at, for whoever wants to show it while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_SHOW: ContextVar[Callable[[str], None] | None] = ContextVar("cudafork_progress", default=None)


@contextlib.contextmanager
def shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Have what checks are at shown by a function, for the length of a ``with``."""
    before = _SHOW.get()
    _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.set(before)  # it may end in another context than it began in


def now_at(what: str) -> None:
    """Say what a check is at: a few words, which stand until it says others."""
    show = _SHOW.get()
    if show is not None:
        show(what)
