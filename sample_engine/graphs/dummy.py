"""The batch that a graph is warmed up and captured with: nobody's requests, of the right size.

It is written into the persistent inputs, so that metadata is built from contents that belong to the
descriptor at hand and not to a batch that was there before. Its tokens go to no slot of the cache.
Whatever the host decides by (the longest text) is, for a FULL graph, the largest that can come: it
serves all shorter texts, none that are longer.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from sample_engine.attention.interface import PAD_SLOT_ID, CommonAttentionMetadata
from sample_engine.batch.input_buffers import InputBuffers
from sample_engine.batch.request import NULL_BLOCK
from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor

__all__ = ["DummyInput", "fill_with_dummy"]


@dataclasses.dataclass(frozen=True)
class DummyInput:
    """Views of the persistent inputs, at the addresses that steps use."""

    input_ids: torch.Tensor  # [T'] int64
    positions: torch.Tensor  # [T'] int64
    common: CommonAttentionMetadata


def fill_with_dummy(
    buffers: InputBuffers,
    desc: BatchExecutionDescriptor,
    *,
    max_num_reqs: int,
    longest: int,  # tokens of a text, at most
) -> DummyInput:
    """Put a batch of a descriptor's size into the inputs.

    For a FULL graph each text is as long as one can be. Around PIECEWISE graphs attention is not
    captured: there the texts are as short as their tokens allow.

    The block tables are overwritten: whoever keeps count of what is in them has to forget it.
    """
    num_tokens = desc.num_tokens
    num_reqs = desc.num_reqs or min(num_tokens, max_num_reqs)
    counts = np.full(num_reqs, num_tokens // num_reqs, np.int64)
    counts[: num_tokens % num_reqs] += 1
    starts = np.concatenate([[0], counts.cumsum()])
    full = desc.cg_mode is CUDAGraphMode.FULL
    lengths = np.full_like(counts, longest) if full else counts
    buffers.wait()
    fields = buffers.step.numpy
    fields["input_ids"][:num_tokens] = 0
    fields["slot_mapping"][:num_tokens] = PAD_SLOT_ID
    rows = np.arange(num_tokens) - np.repeat(starts[:-1], counts)
    fields["positions"][:num_tokens] = np.repeat(lengths - counts, counts) + rows
    fields["query_start_loc"][: num_reqs + 1] = starts
    fields["seq_lens"][:num_reqs] = lengths
    buffers.table.numpy["block_table"][:num_reqs] = NULL_BLOCK
    buffers.step.push()
    buffers.table.push()
    buffers.pushed()
    device, host = buffers.step.device, buffers.step.host
    return DummyInput(
        input_ids=device["input_ids"][:num_tokens],
        positions=device["positions"][:num_tokens],
        common=CommonAttentionMetadata(
            query_start_loc=device["query_start_loc"][: num_reqs + 1],
            seq_lens=device["seq_lens"][:num_reqs],
            block_table=buffers.table.device["block_table"][:num_reqs],
            slot_mapping=device["slot_mapping"][:num_tokens],
            query_start_loc_cpu=host["query_start_loc"][: num_reqs + 1],
            seq_lens_cpu=host["seq_lens"][:num_reqs],
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            max_query_len=int(counts.max()),
            max_seq_len=int(lengths.max()),
        ),
    )
