"""Attention in many forms, and caches of keys and values that replays write: all right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.specimens.graph_programs.program import (
    Case,
    Place,
    Program,
    Verdict,
    line,
    programs_in,
    right,
)
from tests.specimens.graphs.engine import BLOCK, paged_attention, slots_of

__all__ = ["PROGRAMS"]


def _by_hand(q: Tensor) -> Tensor:
    scores = q @ q.mT / 8**0.5
    mask = torch.ones(5, 5, dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ q


def _window(q: Tensor) -> Tensor:
    at = torch.arange(5, device=q.device)
    near = (at[:, None] - at[None]).abs() < 2
    return F.scaled_dot_product_attention(q, q, q, attn_mask=near)


def _slopes(q: Tensor) -> Tensor:
    at = torch.arange(5, device=q.device, dtype=q.dtype)
    bias = -(at[:, None] - at[None]).abs()
    slopes = torch.tensor(0.5) ** torch.arange(1, 3, device=q.device)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=bias * slopes[:, None, None])


def _rotary(q: Tensor) -> Tensor:
    at = torch.arange(5, device=q.device)[:, None] / 10 ** torch.arange(4, device=q.device)
    cos, sin = at.cos(), at.sin()
    first, second = q[..., :4], q[..., 4:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _flat(q: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q)


def _online(q: Tensor) -> Tensor:
    largest = torch.full_like(q[..., :1], float("-inf"))
    total, out = torch.zeros_like(largest), torch.zeros_like(q)
    for start in range(0, 5, 2):
        part = q[..., start : start + 2, :]
        scores = q @ part.mT
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, shrink = (scores - new).exp(), (largest - new).exp()
        out, total = out * shrink + weights @ part, total * shrink + weights.sum(-1, keepdim=True)
        largest = new
    return out / total


def _experts(x: Tensor, w: Tensor) -> Tensor:
    weights, chosen = (x @ w).softmax(-1).topk(2, -1)
    made = torch.stack([x * (number + 1) for number in range(8)])
    rows = torch.arange(4, device=x.device)[:, None]
    return (made[chosen, rows] * weights[..., None]).sum(1)


ROWS: dict[str, Callable[..., Any]] = {
    "by hand": _by_hand,
    "scaled_dot_product": lambda q: F.scaled_dot_product_attention(q, q, q),
    "causal": lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    "fewer heads of keys": lambda q: F.scaled_dot_product_attention(
        q, q[:, :1], q[:, :1], enable_gqa=True
    ),
    "in half": lambda q: F.scaled_dot_product_attention(
        q.half(), q.half(), q.half(), is_causal=True
    ),
    "another scale": lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.3),
    "of a window": _window,
    "slopes as bias": _slopes,
    "rotary positions": _rotary,
    "of the kernel that is told": _flat,
    "part by part": _online,
    "linear": lambda q: (F.elu(q) + 1) @ ((F.elu(q) + 1).mT @ q),
    "experts": _experts,
    "latent": lambda q, w: F.scaled_dot_product_attention(q @ w, q @ w[:, :8], q),
}


@right("heads of torch.nn, with weights and a mask of padding")
def multihead_with_padding(place: Place) -> Case:
    module = nn.MultiheadAttention(8, 2, batch_first=True).to(place.device).eval()
    x, padding = place.randn(2, 5, 8), place.zeros(2, 5, dtype=torch.bool)

    def fn(x: Tensor, padding: Tensor) -> Any:
        with torch.no_grad():
            return module(x, x, x, key_padding_mask=padding)

    return Case(fn, [x, padding], [place.other(x), lambda: padding[:, 3:].fill_(True)])


@right("one token a step is written to a static cache at a position of the device")
def static_cache(place: Place) -> Case:
    x, cache, at = place.randn(2, 8), place.randn(2, 12, 8), place.tensor([3, 5])

    def fn(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
        rows = torch.arange(2, device=x.device)
        cache.index_put_((rows, at), x)
        seen = torch.arange(12, device=x.device)[None] <= at[:, None]
        scores = (cache @ x[:, :, None])[..., 0].masked_fill(~seen, float("-inf"))
        return (scores.softmax(-1)[:, None] @ cache)[:, 0]

    return Case(
        fn, [x, cache, at], [place.other(x), lambda: at.add_(4), lambda: at.copy_(at.flip(0))]
    )


@right("the cache is nobody's input; each step continues where the one before ended")
def cache_that_is_carried(place: Place) -> Case:
    cache, length = place.zeros(12, 8), place.zeros(1, dtype=torch.int64)

    def fn(x: Tensor) -> Tensor:
        cache.index_copy_(0, length % 12, x)
        length.add_(1)
        seen = torch.arange(12, device=x.device) < length
        return torch.where(seen[:, None], cache, 0.0).sum(0)

    x = place.randn(1, 8)
    return Case(fn, [x], [place.other(x)] * 3)


@right("keys go to slots of a paged cache, a block table says where they are read")
def paged_cache(place: Place) -> Case:
    x, cache = place.randn(3, 8), place.randn(BLOCK * 10, 8)
    table = place.tensor(place.shuffled(9, 1)).view(3, 3)
    lens = place.ints(1, 9, 3)

    def fn(x: Tensor, cache: Tensor, table: Tensor, lens: Tensor) -> Tensor:
        cache.index_copy_(0, slots_of(table, lens), x)
        return paged_attention(x, cache, table, lens + 1)

    return Case(
        fn,
        [x, cache, table, lens],
        [lambda: table.copy_(table.flip(0)), lambda: lens.add_(1), place.other(x)],
    )


@right("keys of two layers lie in one tensor, written by views of it")
def one_cache_for_all_layers(place: Place) -> Case:
    caches, x, at = place.zeros(2, 16, 8), place.randn(4, 8), place.tensor([3, 9, 1, 12])

    def fn(x: Tensor, at: Tensor) -> Tensor:
        for layer in range(2):
            caches[layer].index_copy_(0, at, x)
            x = (x @ caches[layer].T).softmax(-1) @ caches[layer]
        return x

    return Case(fn, [x, at], [place.other(x), lambda: at.add_(2)])


@right("the cache holds int8 and a scale for each row")
def quantized_cache(place: Place) -> Case:
    cache, scales = place.zeros(16, 8, dtype=torch.int8), place.zeros(16, 1)
    x, at = place.randn(4, 8), place.tensor([3, 9, 1, 12])

    def fn(x: Tensor, at: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        cache.index_copy_(0, at, (x / scale).round().to(torch.int8))
        scales.index_copy_(0, at, scale)
        return cache.float() * scales

    return Case(fn, [x, at], [place.other(x), lambda: at.add_(2)])


@right("rows are moved within the cache, as after a rejected draft")
def cache_is_rolled_back(place: Place) -> Case:
    cache, keep = place.randn(8, 8), place.tensor([0, 1, 2, 3, 0, 0, 0, 0])

    def fn(cache: Tensor, keep: Tensor) -> Tensor:
        cache.copy_(cache[keep])
        return cache.mean(0)

    return Case(fn, [cache, keep], [lambda: keep.copy_(keep.roll(2)), place.other(cache)])


@right("padded rows write to slot 0, which is nobody's; only live rows are compared")
def padded_rows_write_nobodys_slot(place: Place) -> Case:
    cache, x, slots = place.zeros(16, 8), place.randn(4, 8), place.tensor([4, 5, 6, 7])

    def fn(x: Tensor, slots: Tensor) -> Tensor:
        cache[slots] = x
        return cache[slots] * 2

    def shrink() -> int:
        slots[2:] = 0
        x[2:] = 0
        return 2

    return Case(fn, [x, slots], [shrink, place.other(x)])


@right("drafts are accepted up to the first mismatch, without asking the host")
def drafts_are_accepted(place: Place) -> Case:
    drafts, wanted = place.ints(0, 3, 4, 3), place.ints(0, 3, 4, 4)

    def fn(drafts: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        count = (drafts == wanted[:, :3]).long().cumprod(-1).sum(-1)
        return count, wanted.gather(1, count[:, None])

    return Case(fn, [drafts, wanted], [lambda: wanted[:, :3].copy_(drafts), place.other(drafts)])


@right("logits are cut by top-p and the best token is taken")
def nucleus(place: Place) -> Case:
    logits, most = place.randn(3, 16), place.tensor([0.5, 0.9, 0.2])

    def fn(logits: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        ordered, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
        kept = ordered.cumsum(-1) - ordered < most[:, None]
        cut = torch.zeros_like(logits).scatter_(-1, order, ordered * kept)
        return cut, cut.argmax(-1)

    return Case(fn, [logits, most], [lambda: most.copy_(most.flip(0)), place.other(logits)])


PROGRAMS = (
    *(Program(f"attention {n}", line(f), Verdict.RIGHT, "attention") for n, f in ROWS.items()),
    *programs_in(vars()),
)
