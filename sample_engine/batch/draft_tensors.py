"""What a step knows of drafts: those to be verified, what became of them, those for the next step.

All tensors are on the engine's device; nothing here waits for it. Shapes, in this file and in all
of ``speculate``::

    R   requests of a step; R' >= R where a graph pads
    T'  tokens of a step, packed and padded
    N   rows that are sampled: of each request that samples its last known token and its drafts
    k   num_speculative_tokens
    V   tokens of the vocabulary
"""

from __future__ import annotations

import dataclasses

import torch

__all__ = ["Drafts", "NextStep", "RequestSampling", "StepDrafts", "Unverified", "Verdict"]


@dataclasses.dataclass(frozen=True)
class RequestSampling:
    """How tokens of each request of a step are chosen."""

    temperature: torch.Tensor  # [R'] float32; 0: greedy
    top_k: torch.Tensor  # [R'] int64; 0: all
    top_p: torch.Tensor  # [R'] float32; 1: all
    seed_keys: torch.Tensor  # [R'] int64, of sampling.seed_keys
    filtered: bool  # whether any request has a top_k or a top_p


@dataclasses.dataclass(frozen=True)
class StepDrafts:
    """What a step has to know of its requests to verify drafts and to draft. Views, on the device.

    ``lengths`` are the tokens that are known, or computed so far in the middle of a prompt.
    """

    rows: torch.Tensor  # [R'] int64; the last row of the texts where nobody is
    lengths: torch.Tensor  # [R'] int64
    num_drafts: torch.Tensor  # [R'] int64
    first_rows: torch.Tensor  # [R'] int64
    samples: torch.Tensor  # [R'] bool
    token_ids: torch.Tensor  # [R', k] int64; -1 where there is no draft
    token_rows: torch.Tensor  # [T'] int64
    sampling: RequestSampling | None  # None: all greedy


@dataclasses.dataclass(frozen=True)
class NextStep:
    """All that a step of decodes reads, on the device, to be overwritten with the step after it.

    ``M`` is the tokens that the requests have with all drafts, or the most of a step. ``rows``,
    ``samples`` and ``block_table`` stay as they are.
    """

    rows: torch.Tensor  # [R'] int64
    samples: torch.Tensor  # [R'] bool
    block_table: torch.Tensor  # [R', max_blocks] int32
    input_ids: torch.Tensor  # [M] int64
    positions: torch.Tensor  # [M] int64
    slot_mapping: torch.Tensor  # [M] int64
    token_rows: torch.Tensor  # [M] int64
    query_start_loc: torch.Tensor  # [R' + 1] int32
    seq_lens: torch.Tensor  # [R'] int32
    lengths: torch.Tensor  # [R'] int64
    num_drafts: torch.Tensor  # [R'] int64
    first_rows: torch.Tensor  # [R'] int64
    token_ids: torch.Tensor  # [R', k] int64


@dataclasses.dataclass(frozen=True)
class Unverified:
    """The drafts that a step verifies. Request ``r`` owns the rows from ``first_rows[r]`` on.

    It has ``num_drafts[r] + 1`` of the N rows, the model's logits after its last known token and
    after each draft; one in the middle of its prompt (``samples`` is False) has none.
    """

    token_ids: torch.Tensor  # [R', k] int64; -1 where there is none
    num_drafts: torch.Tensor  # [R'] int64
    first_rows: torch.Tensor  # [R'] int64; any valid row where a request has none
    samples: torch.Tensor  # [R'] bool
    positions: torch.Tensor  # [R'] int64: of the first token that is chosen
    # What drafts were drawn from; None: one-hot, or not asked for. Of greedy requests it is junk.
    probs: torch.Tensor | None  # [R', k, V] float32


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The tokens that are certain now."""

    token_ids: torch.Tensor  # [R', k + 1] int64; -1 after the last, NOT_FINITE where there is none
    num_sampled: torch.Tensor  # [R'] int64: 0 in the middle of a prompt, else accepted drafts + 1


@dataclasses.dataclass(frozen=True)
class Drafts:
    """Guesses of what comes after each text. Rows of requests with ``num_sampled`` 0 are junk."""

    token_ids: torch.Tensor  # [R', k] int64: tokens of the vocabulary, also where they are junk
    counts: torch.Tensor | None = None  # [R'] int64, at most k; None: k each
    # What they were drawn from, after temperature, top-k and top-p; None: nothing was drawn
    # (q is one-hot): verification by rejection then accepts a draft with its probability.
    probs: torch.Tensor | None = None  # [R', k, V] float32
