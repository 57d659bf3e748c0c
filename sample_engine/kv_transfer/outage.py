"""A time in which a store does not work: told once, and asked about again after growing pauses."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Outage"]

_logger = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class Outage:
    """Whether one thing that a store is for works. ``what`` says it: "fetched", "stored".

    Fetching and storing fail for themselves: a server that is full still has blocks to give.
    """

    def __init__(self, what: str, clock: Callable[[], float], *, quiet: bool = False) -> None:
        self.why = ""  # "": it works
        self._what = what
        self._clock = clock
        self._quiet = quiet  # somebody is told by an error
        self._retry_at = self._pause = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the store is to be asked: it works, or the pause is over."""
        return not self.why or self._clock() >= self._retry_at

    def begin(self, error: Exception) -> None:
        """It has failed."""
        first = not self.why
        self._pause = _FIRST_PAUSE if first else min(_LONGEST_PAUSE, 2 * self._pause)
        self._retry_at = self._clock() + self._pause
        self.why = str(error)
        if first and not self._quiet:
            _logger.warning(
                "KV blocks are not %s for now: %s. The engine goes on without, and tries again "
                "after %g seconds.",
                self._what,
                error,
                self._pause,
            )

    def end(self) -> None:
        """It has worked."""
        if self.why:
            _logger.warning("KV blocks are %s again. It was: %s.", self._what, self.why)
            self.why = ""
