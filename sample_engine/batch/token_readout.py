"""The way of sampled tokens to the CPU: started at once, waited for when all else is done."""

from __future__ import annotations

import torch

__all__ = ["TokenReadout"]


class TokenReadout:
    """One step's tokens under way. On a CPU they are there already."""

    def __init__(self, most: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._copied = torch.cuda.Event() if on_gpu else None
        self._host = torch.zeros(most, dtype=torch.int64, pin_memory=on_gpu)

    def start(
        self,
        tokens: torch.Tensor,  # [N] int64
    ) -> None:
        """Start the copy; it follows what the current stream has been given so far."""
        self._count = len(tokens)
        self._host[: self._count].copy_(tokens, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> list[int]:
        """The tokens of the last :meth:`start`."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens: list[int] = self._host[: self._count].tolist()
        return tokens
