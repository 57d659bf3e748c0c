"""What a specimen's test is given: a device, random inputs, and the plugin's two checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_cudafork import assert_replay_equals_eager


class Bench:
    """A place to try one form: all random numbers come from the seed, by way of the CPU.

    Attributes:
        capture_pair: the plugin's fixture.
        backend: "software" or "cuda".
        device: where tensors have to lie.

    """

    def __init__(self, capture_pair: Callable[..., Any], backend: str, seed: int) -> None:
        self.capture_pair = capture_pair
        self.backend = backend
        self.device = "cuda" if backend == "cuda" else "cpu"
        self._random = torch.Generator().manual_seed(seed)

    def replay(self, fn: Callable[..., Any], inputs: Any, **wishes: Any) -> Any:
        """``assert_replay_equals_eager`` on this bench's backend."""
        return assert_replay_equals_eager(fn, inputs, backend=self.backend, **wishes)

    def randn(self, *shape: int) -> torch.Tensor:
        """Return normal numbers."""
        return torch.randn(*shape, generator=self._random).to(self.device)

    def ints(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return integers of ``low <= i < high``."""
        return torch.randint(low, high, shape, generator=self._random).to(self.device)

    def lengths(self, count: int, low: int, high: int) -> list[int]:
        """Return so many integers of ``low <= i < high`` on the host."""
        found: list[int] = torch.randint(low, high, (count,), generator=self._random).tolist()
        return found

    def shuffled(self, count: int, start: int = 0) -> list[int]:
        """Return ``start .. start + count - 1`` in a random order, on the host."""
        found: list[int] = (torch.randperm(count, generator=self._random) + start).tolist()
        return found

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return zeros."""
        return torch.zeros(*shape, dtype=dtype, device=self.device)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return these values."""
        return torch.tensor(values, dtype=dtype, device=self.device)
