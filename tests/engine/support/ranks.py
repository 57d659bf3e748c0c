"""Ranks as threads of one process: what they compute together, without processes between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from sample_engine.model.kernels.reference import rms_norm

__all__ = ["ThreadRank", "on_each_rank"]

_Result = TypeVar("_Result")
_MOST_SECONDS = 120  # one rank that fails would leave the others waiting


class ThreadRank:
    """One of several ranks that wait for each other at a barrier.

    With ``at_once`` it does what follows a sum together with it, as ranks do that share memory.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        barrier: threading.Barrier,
        shared: list[object],
        *,
        at_once: bool = False,
    ) -> None:
        self.rank, self.size, self.at_once = rank, size, at_once
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

    def sum_and_norm(
        self,
        term: torch.Tensor,
        residual: torch.Tensor | None,
        norm: tuple[torch.Tensor, float] | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The sum, and what follows it."""
        if not self.at_once:
            return None
        total = self.all_reduce(term.clone())
        if residual is not None:
            total = total + residual
        return total, total if norm is None else rms_norm(total, *norm)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All of them."""
        return self._all(tensor)


def on_each_rank(
    size: int, work: Callable[[ThreadRank], _Result], *, at_once: bool = False
) -> list[_Result]:
    """Do something on each of so many ranks at a time; what came of it, by rank."""
    barrier = threading.Barrier(size)
    shared: list[object] = [None] * size
    ranks = [ThreadRank(rank, size, barrier, shared, at_once=at_once) for rank in range(size)]

    def guarded(rank: ThreadRank) -> _Result:
        try:
            with torch.inference_mode():
                return work(rank)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, ranks))
