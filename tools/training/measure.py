"""Bits per byte of a model on text that it has not seen."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sample_engine.model.llama import Llama
from tools.training.attention import causal_windows, window_positions

__all__ = ["BitsPerByte", "bits_per_byte"]

_NUM_BYTES = 256


@dataclasses.dataclass(frozen=True)
class BitsPerByte:
    """What a text costs."""

    bits: float
    num_bytes: int

    @property
    def value(self) -> float:
        """Bits for each byte; the ends of files are paid for, but are no bytes."""
        return self.bits / self.num_bytes


def bits_per_byte(
    model: Llama,
    tokens: Tensor,  # [N] integers, on the model's device
    *,
    window: int,
    overlap: bool = True,
    batch: int = 8,
    autocast: bool = False,
) -> BitsPerByte:
    """Return what ``tokens`` cost, each predicted from at least ``window // 2`` tokens before it.

    Windows overlap by half and only their later halves count; the first one counts whole, so the
    first tokens of the text have less to go by, and the very first is free. Without ``overlap``
    windows count whole: a token has up to ``window - 1`` before it, and some have none.
    """
    stride = window // 2 if overlap else window
    skipped = window - stride
    starts = torch.arange(0, max(1, len(tokens) - 1 - skipped), stride, device=tokens.device)
    offsets = torch.arange(window, device=tokens.device)
    bits, count = 0.0, 0
    for chunk in starts.split(batch):
        index = chunk[:, None] + offsets
        counts = (index + 1 < len(tokens)) & ((offsets >= skipped) | (chunk[:, None] == 0))
        inputs = tokens[index.clamp(max=len(tokens) - 1)].long()
        targets = tokens[(index + 1).clamp(max=len(tokens) - 1)].long()
        narrow = torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=autocast)
        with torch.no_grad(), narrow:
            hidden, _ = model(
                inputs.flatten(), window_positions(inputs), causal_windows(len(chunk))
            )
            logits = model.compute_logits(hidden)
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)
        bits += float(losses[counts].double().sum()) / math.log(2)
        count += int((targets[counts] < _NUM_BYTES).sum())
    return BitsPerByte(bits, count)
