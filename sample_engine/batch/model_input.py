"""What a forward pass and the sampling after it read in one step. Values only.

Shapes are those of ``input_batch``, which makes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from sample_engine.attention.interface import CommonAttentionMetadata
from sample_engine.batch.draft_tensors import StepDrafts
from sample_engine.sampling import SamplingTensors

__all__ = ["ModelInput", "common_of"]


@dataclasses.dataclass(frozen=True)
class ModelInput:
    """One step's tensors, all on the device: views of :class:`InputBuffers`."""

    input_ids: torch.Tensor  # [T'] int64
    positions: torch.Tensor  # [T'] int64
    common: CommonAttentionMetadata
    sampled_rows: torch.Tensor | None  # [N] int64, of the T tokens; None: all of them, in order
    num_sampled: int  # N
    sampling: SamplingTensors | None  # None: all greedy, or ``drafts`` says how
    drafts: StepDrafts | None = None  # where the engine speculates

    def has_size(self, padded_reqs: int, padded_tokens: int) -> bool:
        """Whether it is filled up to this size, as :meth:`InputBatch.prepare` would do it."""
        common = self.common
        reqs, tokens = max(common.num_reqs, padded_reqs), max(common.num_tokens, padded_tokens)
        return (common.seq_lens.shape[0], self.input_ids.shape[0]) == (reqs, tokens)


def common_of(
    views: Mapping[str, torch.Tensor],
    counts: Sequence[int],  # [R] tokens of each request in the step
    lengths: Sequence[int],  # [R] and up to its end
) -> CommonAttentionMetadata:
    """What attention has to know of a step; ``views`` are the buffers cut to its padded size."""
    return CommonAttentionMetadata(
        query_start_loc=views["query_start_loc"],
        seq_lens=views["seq_lens"],
        block_table=views["block_table"],
        slot_mapping=views["slot_mapping"],
        query_start_loc_cpu=views["query_start_loc_cpu"],
        seq_lens_cpu=views["seq_lens_cpu"],
        num_reqs=len(counts),
        num_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=max(lengths),
    )
