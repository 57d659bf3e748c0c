"""What the tests of n-grams share: the state after a step, as a speculator gets it."""

from __future__ import annotations

import torch

from sample_engine.attention.interface import CommonAttentionMetadata
from sample_engine.speculate.interface import SpeculatorState

__all__ = ["state_of"]


def state_of(
    texts: torch.Tensor,  # [S, L] int64
    rows: torch.Tensor,  # [R] int64
    lengths: torch.Tensor,  # [R] int64
    num_sampled: torch.Tensor,  # [R] int64
    samples: bool = True,
) -> SpeculatorState:
    """After a decode step of requests with these texts. No n-gram depends on the rest."""
    none, each = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device),
        seq_lens=each,
        block_table=each[:, None],
        slot_mapping=none,
        query_start_loc_cpu=torch.arange(len(rows) + 1, dtype=torch.int32),
        seq_lens_cpu=torch.zeros(len(rows), dtype=torch.int32),
        num_reqs=len(rows),
        num_tokens=len(rows),
        max_query_len=1,
        max_seq_len=texts.shape[1],
    )
    return SpeculatorState(
        texts=texts,
        rows=rows,
        lengths=lengths,
        num_sampled=num_sampled,
        sampling=None,
        positions=none,
        token_rows=rows,
        num_drafts=none,
        aux=(),
        common=common,
        samples=samples,
    )
