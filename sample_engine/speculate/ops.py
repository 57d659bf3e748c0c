"""What is worked out between a model's pass and that of a draft head: numbers of each request.

By our kernels where the model's can run, in plain torch elsewhere; neither waits for the device.
Shapes are those of ``batch.draft_tensors``.
"""

from __future__ import annotations

import torch

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.batch.draft_tensors import (
    Drafts,
    NextStep,
    StepDrafts,
    Unverified,
    Verdict,
)
from sample_engine.batch.scheduled_batch import NOT_FINITE
from sample_engine.model.ops import has_kernels
from sample_engine.speculate.interface import SpeculatorState
from sample_engine.speculate.kernels import reference

__all__ = [
    "accept",
    "append",
    "certain_ends",
    "look_up_ngrams",
    "place_passes",
    "write_next_step",
]


def accept(
    unverified: Unverified,
    found: torch.Tensor,  # [2, N] int64: the model's choices, and what is told of them
    accepted: torch.Tensor | None = None,  # [N] bool; None: a draft counts that is the choice
) -> Verdict:
    """What is certain: of each request the drafts up to the first that is wrong, and one token."""
    args = (
        unverified.token_ids,
        unverified.num_drafts,
        unverified.first_rows,
        unverified.samples,
        found,
        NOT_FINITE,
        accepted,
    )
    if not has_kernels(found.device):
        return Verdict(*reference.accept(*args))
    from sample_engine.speculate.kernels import verdict as kernels

    return Verdict(*kernels.accept(*args))


def append(
    texts: torch.Tensor,  # [S + 1, L + 1] int64, written; the last column is for what is nobody's
    step: StepDrafts,
    verdict: Verdict,
) -> torch.Tensor:  # [R'] int64
    """Write what is certain behind the texts of a step; how long they are then."""
    args = (texts, step.rows, step.lengths, verdict.token_ids, verdict.num_sampled)
    if not has_kernels(texts.device):
        return reference.append(*args)
    from sample_engine.speculate.kernels import verdict as kernels

    return kernels.append(*args)


def look_up_ngrams(
    state: SpeculatorState, k: int, prompt_lookup_max: int, prompt_lookup_min: int
) -> Drafts:
    """What came after the last tokens of each text earlier in it: see ``speculate.ngram``."""
    rule = (k, prompt_lookup_max, prompt_lookup_min)
    args = (state.texts, state.lengths, *rule, state.rows, state.num_sampled)
    if not has_kernels(state.texts.device):
        return Drafts(*reference.look_up_ngrams(*args, padding=0))
    from sample_engine.speculate.kernels import ngram as kernels

    return Drafts(*kernels.look_up_ngrams(*args, padding=0))


def certain_ends(
    state: SpeculatorState,
) -> tuple[torch.Tensor, torch.Tensor]:  # [T'] int64, [R'] int64
    """The token after each of a step; and which of the T' is each request's last certain one."""
    args = (
        state.texts,
        state.token_rows,
        state.positions,
        state.common.query_start_loc,
        state.num_drafts,
        state.num_sampled,
    )
    if not has_kernels(state.texts.device):
        return reference.certain_ends(*args)
    from sample_engine.speculate.kernels import passes as kernels

    return kernels.certain_ends(*args)


def place_passes(
    state: SpeculatorState,
    last_tokens: torch.Tensor,  # [R'] int64, of certain_ends
    block_size: int,
    max_model_len: int,
    first: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ahead: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Where the passes of a draft head are: see ``kernels.reference`` for what is written."""
    args = (
        state.positions,
        last_tokens,
        state.common.seq_lens,
        state.common.block_table,
        block_size,
        max_model_len,
        PAD_SLOT_ID,
        first,
        ahead,
    )
    if not has_kernels(last_tokens.device):
        return reference.place_passes(*args)
    from sample_engine.speculate.kernels import passes as kernels

    return kernels.place_passes(*args)


def write_next_step(
    texts: torch.Tensor,  # [S + 1, L + 1] int64
    lengths: torch.Tensor,  # [R'] int64, of append
    drafts: Drafts,
    out: NextStep,
    block_size: int,
) -> None:
    """Write the step that goes on with these texts and drafts: what mostly comes next."""
    longest = texts.shape[1] - 1
    args = (
        texts,
        lengths,
        drafts.token_ids,
        drafts.counts,
        out,
        block_size,
        longest,
        PAD_SLOT_ID,
    )
    if not has_kernels(texts.device):
        return reference.write_next_step(*args)
    from sample_engine.speculate.kernels import next_step as kernels

    return kernels.write_next_step(*args)
