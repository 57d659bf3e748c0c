"""Which of several calls talks to the core, and which one reads what it says for all of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Turns"]

_Result = TypeVar("_Result")

# How long a call waits for another one that reads, which Ctrl-C may have ended before it said so.
_OTHER_SECONDS = 5.0


class Turns:
    """Lets one call at a time talk to the core. Those that wait for outputs read for each other.

    Only ``lock`` keeps calls apart; the rest says who is better off not to queue up for it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._asking: set[object] = set()  # calls that have the lock, or are on their way to it
        self._waiting: set[queue.SimpleQueue[None]] = set()  # calls that let another one read

    def take(self, call: Callable[[], _Result]) -> _Result:
        """Return what a call of the core returns, made when no other one is under way.

        Not a context manager: Ctrl-C on the way into its block would leave the lock taken.
        """
        asks = object()
        try:
            self._asking.add(asks)
            with self.lock:
                return call()
        finally:
            self._asking.discard(asks)
            for woken in tuple(self._waiting):
                woken.put(None)

    def wait(self, has_come: Callable[[], bool], read: Callable[[], object]) -> None:
        """Wait until something has come for a call, whichever one has read it.

        ``read`` takes its turn, and waits for the core in it. While one call does that the others
        do not queue up for the lock: they would get it after the next step, one by one and in any
        order, and what had come for them would lie there.
        """
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            self._waiting.add(woken)
            while not has_come():
                if not self._asking:
                    read()
                    continue
                try:
                    woken.get(timeout=_OTHER_SECONDS)
                except queue.Empty:
                    self._asking.clear()  # who is there still has the lock all the same
        finally:
            self._waiting.discard(woken)
