"""What the tests of verification share: requests that write text with drafts, all at once.

A text is a Markov chain: what comes next depends on the last token alone, for the model by one
table of logits, for the drafter by another. So the distribution of a text is known exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from sample_engine.batch.draft_tensors import RequestSampling, Unverified, Verdict
from sample_engine.sampling import SamplingTensors, noise_keys, probabilities, sample, seed_keys
from sample_engine.speculate.rejection import verify

__all__ = ["Writers", "sampling_of", "some_table", "unverified_of"]


def some_table(size: int, seed: int, scale: float = 1.5) -> torch.Tensor:
    """Logits of the next token for each last token, ``[size, size]``."""
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) * scale


def sampling_of(seeds: list[int] | torch.Tensor, **values: Any) -> RequestSampling:
    """How requests of these seeds sample; each setting is one value or one for each request."""
    seeds = torch.as_tensor(seeds)

    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(values.get(name, default), dtype=dtype).expand(len(seeds)).clone()

    top_k, top_p = column("top_k", 0, torch.int64), column("top_p", 1.0, torch.float32)
    return RequestSampling(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=top_k,
        top_p=top_p,
        seed_keys=seed_keys(seeds),
        filtered=bool(top_k.any() or (top_p < 1).any()),
    )


def at(sampling: RequestSampling, positions: torch.Tensor) -> SamplingTensors:
    """How each request samples its token at a position."""
    return SamplingTensors(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        noise_keys(sampling.seed_keys, positions),
        sampling.filtered,
    )


def unverified_of(
    token_ids: torch.Tensor,  # [R, k] int64
    num_drafts: torch.Tensor,  # [R] int64; -1: the request samples nothing
    positions: torch.Tensor | int = 0,
    probs: torch.Tensor | None = None,  # [R, k, V]
) -> Unverified:
    """Drafts whose rows of logits are packed in the order of the requests."""
    last = (num_drafts + 1).cumsum(0)
    place = torch.arange(token_ids.shape[1])
    return Unverified(
        token_ids=token_ids.masked_fill(place >= num_drafts[:, None], -1),
        num_drafts=num_drafts.clamp(min=0),
        first_rows=(last - num_drafts - 1).clamp(max=max(int(last[-1]) - 1, 0)),
        samples=num_drafts >= 0,
        positions=torch.as_tensor(positions).expand(len(token_ids)).clone(),
        probs=probs,
    )


@dataclasses.dataclass
class Writers:
    """Requests, one for each seed, that write from token 0 on, as an engine would step by step."""

    model: torch.Tensor  # [V, V]
    drafter: torch.Tensor  # [V, V]
    sampling: RequestSampling
    num_drafts: torch.Tensor  # [R] int64: of each step
    draws: bool = True  # False: drafts are the drafter's most likely tokens, its q is one-hot
    method: str = "probabilistic"

    def write(self, length: int) -> torch.Tensor:
        """Texts of this many tokens, ``[R, length]``."""
        num_reqs, width = len(self.num_drafts), int(self.num_drafts.max())
        each = torch.arange(num_reqs)
        texts = torch.zeros(num_reqs, 1 + length + width + 1, dtype=torch.int64)
        lengths = torch.ones(num_reqs, dtype=torch.int64)
        while int(lengths.min()) <= length:
            # Who is done writes what is cut off below, so that all steps are of one size.
            lengths = lengths.clamp(max=length + 1)
            verdict = self._step(texts[each, lengths - 1], lengths, width)
            for place in range(width + 1):
                certain = verdict.num_sampled > place
                now = texts[each, lengths + place]
                texts[each, lengths + place] = torch.where(
                    certain, verdict.token_ids[:, place], now
                )
            lengths = lengths + verdict.num_sampled
        return texts[:, 1 : 1 + length]

    def _step(self, last: torch.Tensor, positions: torch.Tensor, width: int) -> Verdict:
        tokens, probs = [last], []
        for place in range(width):
            logits, how = self.drafter[tokens[-1]], at(self.sampling, positions + place)
            probs.append(probabilities(logits, how))
            tokens.append(sample(logits, how if self.draws else None))
        shown = torch.stack(tokens, 1)  # [R, k + 1]: what the model sees
        seen = shown[torch.arange(width + 1) <= self.num_drafts[:, None]]  # [N]
        stacked = torch.stack(probs, 1) if self.draws and width else None
        unverified = unverified_of(shown[:, 1:], self.num_drafts, positions, stacked)
        return verify(self.model[seen], self.sampling, unverified, self.method)


def accept_drafts(sampled: Sequence[int], drafts: Sequence[int]) -> tuple[int, ...]:
    """The tokens that are certain: those that the drafts foresaw, and the one after them.

    ``sampled`` holds the model's choice after the text and after each draft, one more than there
    are drafts; a choice counts only if all drafts before it were right.
    """
    right = 0
    while right < len(drafts) and drafts[right] == sampled[right]:
        right += 1
    return tuple(sampled[: right + 1])
