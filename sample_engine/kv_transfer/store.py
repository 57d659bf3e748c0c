"""The interface of what keeps blocks, and the error that says that it does not work now."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

__all__ = ["BlockStore", "StoreError"]


class StoreError(Exception):
    """The store does not work now, in words for whoever runs the engine. It may work later."""


class BlockStore(abc.ABC):
    """Keeps blocks under keys, for any number of engines at once.

    Whatever becomes of a writer, a block is there as a whole or not at all. A call takes a bounded
    time. One thread at a time may use it.
    """

    def __init__(self) -> None:
        self.damaged = 0  # blocks that were found and were not whole

    @abc.abstractmethod
    def get(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        """Fetch the blocks of keys, up to the first that is not there; returns how many.

        Each is written to the row of its place, which is as long as the block. Rows beyond those
        that are returned may have been written to. Raises :class:`StoreError`.
        """

    @abc.abstractmethod
    def put(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        """Store blocks, those that are not there yet; returns how many these were.

        Raises :class:`StoreError`, also where only some could be stored.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the store; twice does no harm. In a forked child it is left alone."""

    @abc.abstractmethod
    def describe(self) -> str:
        """What and where it is, without secrets."""

    def metrics(self) -> dict[str, Any]:
        """What it counts, beside others."""
        return {"damaged_blocks": self.damaged}
