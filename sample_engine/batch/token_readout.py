"""The way of sampled tokens to the CPU: started at once, waited for when all else is done."""

from __future__ import annotations

import dataclasses
from collections import deque

import torch

__all__ = ["TokenReadout", "TokensUnderWay"]


@dataclasses.dataclass(frozen=True)
class TokensUnderWay:
    """One step's tokens on their way. On a CPU they are there already."""

    _host: torch.Tensor  # [N] int64
    _copied: torch.cuda.Event | None

    def wait(self) -> list[int]:
        """The tokens, once they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens: list[int] = self._host.tolist()
        return tokens


class TokenReadout:
    """Where tokens come to, for as many steps at once as may be under way."""

    def __init__(self, most: int, device: torch.device, steps: int = 1) -> None:
        on_gpu = device.type == "cuda"
        self._places = deque(
            (
                torch.zeros(most, dtype=torch.int64, pin_memory=on_gpu),
                torch.cuda.Event() if on_gpu else None,
            )
            for _ in range(steps)
        )

    def start(
        self,
        tokens: torch.Tensor,  # [N] int64
    ) -> TokensUnderWay:
        """Start the copy; it follows what the current stream has been given so far.

        What it returns is valid until ``steps`` further ones have been started.
        """
        self._places.rotate(1)
        host, copied = self._places[0]
        under_way = TokensUnderWay(host[: len(tokens)], copied)
        host[: len(tokens)].copy_(tokens, non_blocking=True)
        if copied is not None:
            copied.record()
        return under_way
