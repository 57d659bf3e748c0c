"""From logits to tokens: greedy, temperature, top-k, top-p.

The noise of a choice is a function of the request's seed, the position of the token and the index
in the vocabulary, and of nothing else: not of the batch, of chunks, of a preemption or of the
device. So it needs no state, and a token that is computed anew comes out the same. It also makes
drafts verifiable by comparison: the token of a position is fixed once the text before it is, so a
draft is right if it is that token, and the text comes out as it would have without drafts.

Shapes::

    N  rows: positions for which a token is chosen; several of one request where drafts are verified
    V  tokens of the vocabulary
"""

from __future__ import annotations

import dataclasses
import enum

import torch

__all__ = [
    "Purpose",
    "SamplingTensors",
    "draw",
    "gumbel",
    "noise_keys",
    "probabilities",
    "purpose_keys",
    "sample",
    "scores",
    "seed_keys",
    "uniform",
]

# SplitMix64 (Steele, Lea, Flood 2014): a counter times an odd number, then a mix of all bits. As
# signed numbers, which is what torch has; multiplication drops what goes beyond 64 bits.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_POSITION_STEP = 0xD1B54A32D192ED03 - (1 << 64)  # positions never meet: see test_sampling
_PURPOSE_STEP = 0x8CB92BA72F3D8DD7 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_LARGEST_FLOAT32_BELOW_1 = 1.0 - 2.0**-24
_SMALLEST_TEMPERATURE = 1.2e-38  # the smallest float32 that no device takes for 0
_LARGEST_TEMPERATURE = 3.0e38


class Purpose(enum.IntEnum):
    """What noise of one position is for. Noise of two purposes is independent."""

    CHOICE = 0  # a token of a distribution; also a draft, out of the drafter's own
    ACCEPTANCE = 1  # whether a draft is accepted
    RESIDUAL = 2  # the token in place of a draft that is not


@dataclasses.dataclass(frozen=True)
class SamplingTensors:
    """How the tokens of a step are chosen, row by row."""

    temperature: torch.Tensor  # [N] float32; 0: greedy
    top_k: torch.Tensor  # [N] int64; 0: all
    top_p: torch.Tensor  # [N] float32; 1: all
    keys: torch.Tensor  # [N] int64, of noise_keys
    filtered: bool  # whether any row has a top_k or a top_p


def sample(
    logits: torch.Tensor,  # [N, V] float32
    how: SamplingTensors | None,  # None: all rows are greedy
) -> torch.Tensor:  # [N] int64
    """The token of each row. A row's token does not depend on the other rows."""
    greedy = logits.argmax(dim=-1)
    if how is None:
        return greedy
    values, index = scores(logits, how)
    return torch.where(how.temperature == 0, greedy, draw(values, index, how.keys))


def scores(
    logits: torch.Tensor,  # [N, V] float32
    how: SamplingTensors,
) -> tuple[torch.Tensor, torch.Tensor]:  # [N, V] float32; [V] or [N, V] int64
    """The logarithm of the distribution to sample from, up to a constant, and its order.

    It is minus infinity for what temperature, top-k and top-p exclude. The second tensor holds the
    index in the vocabulary of each score: where there is a filter, the scores are sorted.
    """
    # Subtracted first: a tiny temperature then gives minus infinity, never infinity or NaN.
    values = logits - logits.amax(dim=-1, keepdim=True)
    values /= how.temperature.clamp(_SMALLEST_TEMPERATURE, _LARGEST_TEMPERATURE).unsqueeze(-1)
    if not how.filtered:
        return values, torch.arange(logits.shape[-1], device=logits.device)
    # Stable: of equal logits the one with the lower index goes first, as for argmax.
    values, index = values.sort(dim=-1, descending=True, stable=True)
    return values.masked_fill_(_filtered_out(values, how), float("-inf")), index


def draw(
    values: torch.Tensor,  # [N, V] float32, as of scores; overwritten
    index: torch.Tensor,  # [V] or [N, V] int64, likewise
    keys: torch.Tensor,  # [N] int64, of purpose_keys
) -> torch.Tensor:  # [N] int64
    """A token of each row's distribution."""
    values += gumbel(keys, index)
    choice = values.argmax(dim=-1)
    return choice if index.dim() == 1 else index.gather(-1, choice.unsqueeze(-1)).squeeze(-1)


def finite_rows(
    logits: torch.Tensor,  # [N, V] float32
) -> torch.Tensor:  # [N] bool
    """Which rows are free of NaN and infinity. Least and most tell it: a NaN is both of them."""
    least, most = torch.aminmax(logits, dim=-1)
    return torch.isfinite(least) & torch.isfinite(most)


def probabilities(
    logits: torch.Tensor,  # [N, V] float32
    how: SamplingTensors | None,  # None: all rows are greedy
) -> torch.Tensor:  # [N, V] float32
    """The distribution of :func:`sample` over the vocabulary; a greedy row's has one token."""
    greedy = torch.zeros_like(logits).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    if how is None:
        return greedy
    values, index = scores(logits, how)
    spread = torch.zeros_like(logits).scatter_(-1, index.expand_as(values), values.softmax(dim=-1))
    return torch.where((how.temperature == 0).unsqueeze(-1), greedy, spread)


def _filtered_out(
    values: torch.Tensor,  # [N, V] float32, descending
    how: SamplingTensors,
) -> torch.Tensor:  # [N, V] bool
    """What top-k, then top-p of what is left of the distribution, exclude.

    Top-p keeps the fewest tokens that together have at least the probability ``top_p``; the most
    likely one is always kept.
    """
    rank = torch.arange(values.shape[-1], device=values.device)
    top_k = how.top_k.unsqueeze(-1)
    out = (rank >= top_k) & (top_k > 0)
    chances = values.masked_fill(out, float("-inf")).softmax(dim=-1, dtype=torch.float64)
    before = chances.cumsum(dim=-1) - chances
    top_p = how.top_p.unsqueeze(-1)
    out |= (before >= top_p) & (top_p < 1) & (rank > 0)
    return out


def seed_keys(
    seeds: torch.Tensor,  # [N] int64
) -> torch.Tensor:  # [N] int64
    """What of the noise depends on requests alone. On any device, the same."""
    return _mix(seeds + _STEP)


def noise_keys(
    keys: torch.Tensor,  # [N] int64, of seed_keys
    positions: torch.Tensor,  # [N] int64, of the tokens that are chosen
) -> torch.Tensor:  # [N] int64
    """Where the noise of each row begins. On any device, the same."""
    return positions * _POSITION_STEP + keys


def purpose_keys(
    keys: torch.Tensor,  # [N] int64, of noise_keys
    purpose: Purpose,
) -> torch.Tensor:  # [N] int64
    """Where the noise of each row begins that is for something else. On any device, the same."""
    return keys if purpose is Purpose.CHOICE else _mix(keys + (_PURPOSE_STEP + purpose))


def uniform(
    keys: torch.Tensor,  # [N] int64, of purpose_keys
) -> torch.Tensor:  # [N] float64
    """One number for each row, at least 0 and less than 1. On any device, the same."""
    return ((_mix(keys + _STEP) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53


def gumbel(
    keys: torch.Tensor,  # [N] int64, of noise_keys or purpose_keys
    index: torch.Tensor,  # [V] or [N, V] int64, indices in the vocabulary
) -> torch.Tensor:  # [N, V] float32
    """Gumbel noise: adding it to logits and taking the largest samples from their softmax.

    It is ``-log(-log1p(-u))`` of 32 random bits. Large noise decides, and comes from small ``u``,
    which float32 holds exactly: even tokens of probability 1e-8 come as often as they should.
    """
    bits = _mix(index * _STEP + keys.unsqueeze(-1))
    chance = bits.bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF).to(torch.float32)
    chance.add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_FLOAT32_BELOW_1)
    return chance.neg_().log1p_().neg_().log_().neg_()


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's mix, in place. Right shifts fill with the sign: what comes in is cut off."""
    x ^= (x >> 30) & 0x3FFFFFFFF
    x *= _MIX_1
    x ^= (x >> 27) & 0x1FFFFFFFFF
    x *= _MIX_2
    x ^= (x >> 31) & 0x1FFFFFFFF
    return x
