"""How likely the tokens of a step were, for the requests that ask."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sample_engine.batch.outputs import TokenLogprobs
from sample_engine.batch.scheduled_batch import NOT_FINITE, ScheduledBatch

__all__ = ["logprobs_of"]


def logprobs_of(
    batch: ScheduledBatch,
    sampled: Sequence[Sequence[int]],
    logits: torch.Tensor,  # [N, V] float32; N rows, of each request that samples 1 + its drafts
) -> tuple[tuple[TokenLogprobs, ...], ...]:
    """Return for each request what it asked for of its sampled tokens; empty where none asked.

    The distribution is the model's: before temperature, top-k and top-p, as vLLM's default. It
    waits for the device.
    """
    sampled = [[token for token in new if token != NOT_FINITE] for new in sampled]
    rows, tokens, most = _asked(batch, sampled)
    if not rows:
        return ()
    values = logits[torch.tensor(rows, device=logits.device)].log_softmax(dim=-1)
    chosen = values.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1))
    ranks = (values > chosen).sum(dim=-1) + 1
    top = values.topk(min(most, values.shape[-1]), dim=-1)
    lines = iter(
        zip(
            tokens,
            chosen.squeeze(-1).tolist(),
            ranks.tolist(),
            top.indices.tolist(),
            top.values.tolist(),
            strict=True,
        )
    )
    found: list[tuple[TokenLogprobs, ...]] = []
    for part, new in zip(batch.requests, sampled, strict=True):
        count = part.request.params.logprobs
        each: list[TokenLogprobs] = []
        for _ in new if count is not None else ():
            token, logprob, rank, ids, logprobs = next(lines)
            each.append(
                TokenLogprobs((token, *ids[:count]), (logprob, *logprobs[:count]), int(rank))
            )
        found.append(tuple(each))
    return tuple(found)


def _asked(
    batch: ScheduledBatch, sampled: Sequence[Sequence[int]]
) -> tuple[list[int], list[int], int]:
    """The rows and tokens of requests that ask, and the most likely ones that anybody wants."""
    rows: list[int] = []
    tokens: list[int] = []
    row = most = 0
    for part, new in zip(batch.requests, sampled, strict=True):
        count = part.request.params.logprobs
        if count is not None:
            rows += range(row, row + len(new))
            tokens += new
            most = max(most, count)
        row += 1 + part.num_drafts if part.samples else 0
    return rows, tokens, most
