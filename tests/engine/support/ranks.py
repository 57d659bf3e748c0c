"""Ranks as threads of one process: what they compute together, without processes between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["ThreadRank", "on_each_rank"]

_Result = TypeVar("_Result")
_MOST_SECONDS = 120  # one rank that fails would leave the others waiting


class ThreadRank:
    """One of several ranks that wait for each other at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, shared: list[object]):
        self.rank, self.size = rank, size
        self.sums = 0
        self._barrier = barrier
        self._shared = shared

    def _all(self, tensor: torch.Tensor) -> torch.Tensor:
        self._shared[self.rank] = tensor.clone()
        self._barrier.wait(_MOST_SECONDS)
        found = torch.stack([each for each in self._shared if isinstance(each, torch.Tensor)])
        self._barrier.wait(_MOST_SECONDS)
        return found

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum."""
        self.sums += 1
        return tensor.copy_(self._all(tensor).sum(dim=0))

    def sum_and_norm(self, *args: object) -> None:
        """Not at once: by a sum, and what follows it."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All of them."""
        return self._all(tensor)


def on_each_rank(size: int, work: Callable[[ThreadRank], _Result]) -> list[_Result]:
    """Do something on each of so many ranks at a time; what came of it, by rank."""
    barrier, shared = threading.Barrier(size), [None] * size
    ranks = [ThreadRank(rank, size, barrier, shared) for rank in range(size)]  # type: ignore[arg-type]

    def guarded(rank: ThreadRank) -> _Result:
        try:
            with torch.inference_mode():
                return work(rank)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, ranks))
