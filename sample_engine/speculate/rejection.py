"""The rule by which drafts count: verification of a batch that never waits for the device.

Two methods. Both give greedy requests exactly the model's choices:

``probabilistic``  Leviathan et al. 2023, Chen et al. 2023. A draft ``d`` that was drawn from ``q``
                   is accepted with probability ``min(1, p(d) / q(d))``; in place of one that is not
                   comes a token of ``max(p - q, 0)``. So each token has the distribution ``p``.
``strict``         A draft is right if it is the token that the model itself draws at that position
                   with its noise. So the text is the same, token for token, as without drafts.

``p`` is what :func:`sample_engine.sampling.sample` draws from: the distribution after temperature,
top-k and top-p. All noise is counter-based (:class:`sample_engine.sampling.Purpose`). A drafter
may draw with the noise of ``Purpose.CHOICE`` at the position that it drafts: ``probabilistic`` uses
that noise at positions without a draft alone, and in ``strict`` it makes drafts right more often.

Shapes are those of ``batch.draft_tensors``.
"""

from __future__ import annotations

import torch

from sample_engine.batch.draft_tensors import RequestSampling, Unverified, Verdict
from sample_engine.batch.scheduled_batch import NOT_FINITE
from sample_engine.config import REJECTION_METHODS
from sample_engine.model import ops as model_ops
from sample_engine.sampling import (
    Purpose,
    SamplingTensors,
    draw,
    finite_rows,
    noise_keys,
    purpose_keys,
    sample,
    scores,
    uniform,
)
from sample_engine.speculate import ops

__all__ = ["verify"]


def verify(
    logits: torch.Tensor,  # [N, V] float32
    sampling: RequestSampling | None,  # None: all requests are greedy
    unverified: Unverified,
    method: str = "probabilistic",
) -> Verdict:
    """Compare drafts with what the model says. The tokens of a request depend on no other one."""
    if method not in REJECTION_METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(REJECTION_METHODS)}")
    drafts, samples = unverified.token_ids, unverified.samples
    num_reqs, width = drafts.shape
    if not logits.shape[0]:
        return Verdict(
            drafts.new_full((num_reqs, width + 1), -1), torch.zeros_like(samples, dtype=torch.int64)
        )
    if sampling is None:
        return ops.accept(unverified, model_ops.greedy(logits, NOT_FINITE))
    place = torch.arange(width + 1, device=logits.device)
    rows = (unverified.first_rows.unsqueeze(-1) + place).clamp_(max=logits.shape[0] - 1)
    slot = _slots(rows, unverified, logits.shape[0])
    how = _of_rows(sampling, unverified, slot)
    accepted = None
    if method == "strict":
        choice = sample(logits, how)
    else:
        exists = (place[:-1] < unverified.num_drafts.unsqueeze(-1)) & samples.unsqueeze(-1)
        choice, accepted = _reject(logits, how, *_drafts_of_rows(unverified, exists, slot))
    told = torch.where(finite_rows(logits), choice, NOT_FINITE)
    return ops.accept(unverified, torch.stack((choice, told)), accepted)


def _slots(
    rows: torch.Tensor,  # [R', k + 1] int64
    unverified: Unverified,
    num_rows: int,
) -> torch.Tensor:  # [N] int64
    """For each row of the logits its place among R' * (k + 1); a row of nobody gets any."""
    place = torch.arange(rows.shape[1], device=rows.device)
    owned = (place <= unverified.num_drafts.unsqueeze(-1)) & unverified.samples.unsqueeze(-1)
    target = torch.where(owned, rows, num_rows)  # one more for what is no row
    slots = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
    return slots.scatter_(0, target.flatten(), torch.arange(rows.numel(), device=rows.device))[:-1]


def _of_rows(
    sampling: RequestSampling,
    unverified: Unverified,
    slot: torch.Tensor,  # [N] int64
) -> SamplingTensors:
    """How the token of each row is chosen."""
    width = unverified.token_ids.shape[1] + 1
    owner, place = slot // width, slot % width
    return SamplingTensors(
        temperature=sampling.temperature[owner],
        top_k=sampling.top_k[owner],
        top_p=sampling.top_p[owner],
        keys=noise_keys(sampling.seed_keys[owner], unverified.positions[owner] + place),
        filtered=sampling.filtered,
    )


def _drafts_of_rows(
    unverified: Unverified,
    exists: torch.Tensor,  # [R', k] bool
    slot: torch.Tensor,  # [N] int64
) -> tuple[torch.Tensor, torch.Tensor | None]:  # [N] int64, [N, V] float32
    """The draft that each row judges, -1 for none; what it was drawn from."""
    num_reqs, width = exists.shape
    drafts = torch.full((num_reqs, width + 1), -1, dtype=torch.int64, device=slot.device)
    drafts[:, :-1] = torch.where(exists, unverified.token_ids, -1)
    if unverified.probs is None or not width:
        return drafts.flatten()[slot], None
    owner, place = slot // (width + 1), (slot % (width + 1)).clamp(max=width - 1)
    return drafts.flatten()[slot], unverified.probs[owner, place]


def _reject(
    logits: torch.Tensor,  # [N, V] float32
    how: SamplingTensors,
    draft: torch.Tensor,  # [N] int64, -1: none
    q: torch.Tensor | None,  # [N, V] float32; None: drafts were certain
) -> tuple[torch.Tensor, torch.Tensor]:  # [N] int64, [N] bool
    """For each row the token if its draft is not accepted or there is none; whether it is."""
    values, index = scores(logits, how)
    p = values.softmax(dim=-1)
    drafted = index == draft.unsqueeze(-1)  # [N, V], nowhere in a row without a draft
    p_draft = torch.where(drafted, p, 0.0).sum(dim=-1)
    q_draft: torch.Tensor | float = 1.0
    if q is not None:
        q_draft = q.gather(-1, draft.clamp(min=0).unsqueeze(-1)).squeeze(-1).double()
        q = q if index.dim() == 1 else q.gather(-1, index)
    # In 64 bits, where a chance below 1 times q is below q: no draft is rejected while p >= q.
    chance = uniform(purpose_keys(how.keys, Purpose.ACCEPTANCE))
    accepted = chance * q_draft < p_draft.double()
    keys = torch.where(draft < 0, how.keys, purpose_keys(how.keys, Purpose.RESIDUAL))
    choice = draw(_residual(values, p, q, drafted), index, keys)
    is_greedy, greedy = how.temperature == 0, logits.argmax(dim=-1)
    return torch.where(is_greedy, greedy, choice), torch.where(is_greedy, draft == greedy, accepted)


def _residual(
    values: torch.Tensor,  # [N, V] float32: the logarithm of p up to a constant
    p: torch.Tensor,  # [N, V] float32
    q: torch.Tensor | None,  # [N, V] float32; None: one-hot
    drafted: torch.Tensor,  # [N, V] bool: where the draft is
) -> torch.Tensor:  # [N, V] float32
    """The logarithm of ``max(p - q, 0)``, likewise; of ``p`` in a row without a draft."""
    if q is None:
        left = values.masked_fill(drafted, float("-inf"))
    else:
        # p - q = p (1 - q / p): nothing is left where q is larger, and where p is 0.
        share = torch.where(p > 0, q / p, 1.0).clamp_(max=1.0)
        left = values + torch.log1p(-share)
        left = torch.where(drafted.any(dim=-1, keepdim=True), left, values)
    # Where p and q are equal nothing is left: only rounding can then have rejected the draft. A
    # drafter whose numbers are none makes a q of NaN, by which no draft is accepted.
    some = left.amax(dim=-1, keepdim=True) > float("-inf")
    return torch.where(some, left, values)
