"""How a decode's keys are cut into items, so that many processors work on one sequence.

An item is a stretch of one request's keys. Its partial result is the attention over that stretch
alone, with the logarithm of its weights' sum; ``combine_splits`` puts the items of a request
together. This module holds the ways to say what the items are, and runs nothing.

Shapes::

    R'  requests, padded ones included
    N   room for items
    Q   query tokens of a request, at most
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

__all__ = [
    "EvenSplits",
    "FixedSplits",
    "PlannedSplits",
    "Splits",
    "UnplannedSplits",
    "item_tensors",
    "partials",
]


@dataclasses.dataclass(frozen=True)
class FixedSplits:
    """Stretches of one length: item ``request * num_splits + i`` starts at ``i * split_len``."""

    split_len: int
    num_splits: int  # of the longest sequence

    block: ClassVar[int] = 1

    def capacity(self, num_reqs: int) -> int:
        """Room for items."""
        return num_reqs * self.num_splits


@dataclasses.dataclass(frozen=True)
class EvenSplits:
    """At most so many equal stretches of each request, of whole blocks of keys.

    How long they are, the device finds from the length of the request at that time: so a graph that
    was captured for the longest texts keeps all processors busy with short ones, too.
    """

    num_splits: int
    block: int
    split_len: ClassVar[int] = 0  # what tells the kernels that it is to be found

    def capacity(self, num_reqs: int) -> int:
        """Room for items."""
        return num_reqs * self.num_splits


@dataclasses.dataclass(frozen=True)
class PlannedSplits:
    """Stretches that a plan on the device says; the host does not know them."""

    item_req: torch.Tensor  # [N] int32; -1: not used
    item_start: torch.Tensor  # [N] int32
    item_stop: torch.Tensor  # [N] int32
    first_item: torch.Tensor  # [R' + 1] int32

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them, in the order of the fields."""
        return self.item_req, self.item_start, self.item_stop, self.first_item

    def capacity(self, num_reqs: int) -> int:
        """Room for items."""
        del num_reqs
        return int(self.item_req.shape[0])


UnplannedSplits = FixedSplits | EvenSplits
Splits = UnplannedSplits | PlannedSplits


def partials(
    splits: Splits,
    num_reqs: int,
    max_query_len: int,
    num_heads: int,
    head_dim: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for partial results: [N, Q, H, D] and, for the logarithms, [N, Q, H]."""
    size = (splits.capacity(num_reqs), max_query_len, num_heads)
    out = torch.empty(*size, head_dim, dtype=torch.float32, device=device)
    return out, torch.empty(size, dtype=torch.float32, device=device)


def item_tensors(
    splits: Splits,
    seq_lens: torch.Tensor,  # [R'] int32
) -> PlannedSplits:
    """The items as tensors, whichever way they are said. It does not wait for the device."""
    if isinstance(splits, PlannedSplits):
        return splits
    num_reqs, device = seq_lens.shape[0], seq_lens.device
    num_splits = splits.num_splits
    reqs = torch.arange(num_reqs, device=device, dtype=torch.int32)
    reqs = reqs.repeat_interleave(num_splits, output_size=num_reqs * num_splits)
    length = torch.full_like(reqs, splits.split_len)
    if isinstance(splits, EvenSplits):
        blocks = -(-seq_lens // (num_splits * splits.block))
        length = (blocks * splits.block)[reqs]
    number = torch.arange(num_splits, device=device, dtype=torch.int32).repeat(num_reqs)
    start = number * length
    stop = torch.minimum(start + length, seq_lens[reqs])
    used = start < stop
    first = torch.arange(num_reqs + 1, device=device, dtype=torch.int32) * num_splits
    return PlannedSplits(torch.where(used, reqs, -1), start, stop, first)
