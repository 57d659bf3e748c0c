"""Batches that are smaller than the captured size, and static inputs that keep another batch's rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.specimens.graph_programs.program import Case, Place, Verdict, both, programs_in

__all__ = ["PROGRAMS"]

WRONG = Verdict.WRONG
REFILLS = {"refills": True}


def _refilled(
    fn: Callable[..., Any], static: dict[str, Tensor], fills: list[Callable[[], Any]]
) -> Case:
    """Batches that were prepared one after another: what one leaves, the next finds.

    Eager code that is right computes with a batch whose rest is clean.
    """
    return Case(fn, static, fills, options=dict(REFILLS))


@both(
    WRONG,
    "rows past the batch keep their lengths, and write keys by an old table",
    corpus="vllm-project/vllm#43682",
)
def padded_rows_write_keys(place: Place, fixed: bool) -> Case:
    x, slots, cache, live = place.randn(4, 8), place.tensor([4, 5, 6, 7]), place.zeros(16, 8), [4]

    def fn(x: Tensor, slots: Tensor, cache: Tensor) -> Tensor:
        cache.index_copy_(0, slots, x)
        return cache[4:8] * 1.0

    def eager(x: Tensor, slots: Tensor, cache: Tensor) -> Tensor:
        count = live[0]
        cache.index_copy_(0, slots[:count], x[:count])
        return cache[4:8] * 1.0

    def shrink() -> None:
        live[0] = 2
        slots.copy_(torch.tensor([6, 7, 4, 5]).to(slots.device))
        if fixed:
            slots[2:] = torch.tensor([0, 1]).to(slots.device)

    return Case(fn, [x, slots, cache], [shrink], options={"eager": eager})


@both(
    WRONG,
    "places of last tokens are not padded and point into live rows of before",
    corpus="vllm-project/vllm#39773",
)
def places_of_last_tokens(place: Place, fixed: bool) -> Case:
    hidden, last, live = place.randn(8, 8), place.tensor([1, 3, 5, 7]), [4]

    def fn(hidden: Tensor, last: Tensor) -> Tensor:
        return hidden[last].sum(0)

    def eager(hidden: Tensor, last: Tensor) -> Tensor:
        return hidden[last[: live[0]]].sum(0)

    def smaller() -> None:
        live[0] = 2
        last[:2] = torch.tensor([0, 2]).to(last.device)
        if fixed:
            last[2:] = 7
            hidden[7] = 0

    return Case(fn, [hidden, last], [smaller], options={"eager": eager})


@both(
    WRONG,
    "the writer takes the count of rows from the padded keys",
    corpus="vllm-project/vllm#13418",
)
def count_of_padded_keys(place: Place, fixed: bool) -> Case:
    keys, slots, cache, count = (
        place.randn(4, 8),
        place.tensor([3, 4, 5, 6]),
        place.zeros(8, 8),
        place.tensor(4),
    )
    live = [4]

    def fn(keys: Tensor, slots: Tensor, cache: Tensor, count: Tensor) -> Tensor:
        if fixed:
            real = torch.arange(4, device=keys.device) < count
            keys = torch.where(real[:, None], keys, cache[slots])
        cache.index_copy_(0, slots, keys)
        return cache + 0

    def eager(keys: Tensor, slots: Tensor, cache: Tensor, count: Tensor) -> Tensor:
        cache.index_copy_(0, slots[: live[0]], keys[: live[0]])
        return cache + 0

    def shrink() -> None:
        live[0] = 3
        count.fill_(3)
        place.other(keys)()

    return Case(fn, [keys, slots, cache, count], [shrink], options={"eager": eager})


@both(WRONG, "positions of padded rows are not set back", corpus="sgl-project/sglang#10892")
def positions_past_the_batch(place: Place, fixed: bool) -> Case:
    x, positions = place.randn(4, 8), place.tensor([0, 0, 0, 0])
    batches = [(3, 7, 9, 2), (5, 1)]

    def fill(number: int) -> None:
        batch = batches[number]
        x.copy_(place.randn(4, 8))
        positions[: len(batch)] = torch.tensor(batch).to(positions.device)
        if fixed:
            positions[len(batch) :] = 0

    def fn(x: Tensor, positions: Tensor) -> Tensor:
        return (x * positions[:, None]).sum(0)

    return _refilled(fn, {"x": x, "positions": positions}, [lambda: fill(0), lambda: fill(1)])


@both(
    WRONG,
    "one field is padded to the bucket, the places in the cache are not",
    corpus="sgl-project/sglang#25529",
)
def one_field_of_two_is_padded(place: Place, fixed: bool) -> Case:
    tokens, slots = place.zeros(4, dtype=torch.int64), place.zeros(4, dtype=torch.int64)
    table = place.randn(16, 8)
    batches = [((5, 6, 7, 8), (1, 2, 3, 4)), ((9, 10), (5, 6))]

    def fill(number: int) -> None:
        words, places = batches[number]
        tokens.zero_()
        tokens[: len(words)] = torch.tensor(words).to(tokens.device)
        if fixed:
            slots.zero_()
        slots[: len(places)] = torch.tensor(places).to(slots.device)

    def fn(tokens: Tensor, slots: Tensor) -> Tensor:
        cache = torch.zeros(16, 8, device=tokens.device)
        return cache.index_copy(0, slots, table[tokens])[1:]

    return _refilled(fn, {"tokens": tokens, "slots": slots}, [lambda: fill(0), lambda: fill(1)])


@both(
    WRONG,
    "the batch shrinks, and offsets past its end still say the old total",
    corpus="sgl-project/sglang#28569",
)
def offsets_of_a_larger_batch(place: Place, fixed: bool) -> Case:
    x, ends = place.randn(8, 8), place.zeros(4, dtype=torch.int64)
    batches = [(2, 4, 6, 8), (1, 3)]

    def fill(number: int) -> None:
        batch = batches[number]
        x.copy_(place.randn(8, 8))
        ends[: len(batch)] = torch.tensor(batch).to(ends.device)
        if fixed:
            ends[len(batch) :] = batch[-1]

    def fn(x: Tensor, ends: Tensor) -> Tensor:
        sums = torch.cat([x.new_zeros(1, 8), x.cumsum(0)])
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        return sums[ends] - sums[starts]

    return _refilled(fn, {"x": x, "ends": ends}, [lambda: fill(0), lambda: fill(1)])


@both(
    WRONG,
    "an optional bias is left out of a batch, and the old one stays",
    corpus="NVIDIA/TensorRT-LLM#18207",
)
def optional_bias(place: Place, fixed: bool) -> Case:
    x, bias = place.randn(4, 8), place.zeros(8)
    given = [place.randn(8), None]

    def fill(number: int) -> None:
        x.copy_(place.randn(4, 8))
        now = given[number]
        if now is not None:
            bias.copy_(now)
        elif fixed:
            bias.zero_()

    return _refilled(
        lambda x, bias: (x + bias).relu(),
        {"x": x, "bias": bias},
        [lambda: fill(0), lambda: fill(1)],
    )


def _stale(
    place: Place, fixed: bool, static: Tensor, values: tuple[Any, Any], fn: Callable[..., Any]
) -> Case:
    """A field that begins at zero is filled by the first batch, and not by the second."""
    x = place.randn(4, 8)

    def fill(number: int) -> None:
        x.copy_(place.randn(4, 8))
        value = values[number]
        if value is None:
            if fixed:
                static.zero_()
            return
        static.copy_(torch.tensor(value, dtype=static.dtype).to(static.device))

    return _refilled(fn, {"x": x, "static": static}, [lambda: fill(0), lambda: fill(1)])


@both(
    WRONG,
    "slots of integers that begin at zero keep those of the last batch",
    corpus="NVIDIA/TensorRT-LLM#18207",
)
def stale_integers(place: Place, fixed: bool) -> Case:
    return _stale(
        place, fixed, place.zeros(4, dtype=torch.int64), ((3, 1, 2, 3), None),
        lambda x, static: x[static],
    )  # fmt: skip


@both(WRONG, "a mask of booleans keeps that of the last batch", corpus="NVIDIA/TensorRT-LLM#18207")
def stale_mask(place: Place, fixed: bool) -> Case:
    return _stale(
        place, fixed, place.zeros(4, dtype=torch.bool), ((True, False, True, True), None),
        lambda x, static: x.masked_fill(static[:, None], 0.0),
    )  # fmt: skip


@both(WRONG, "kinds as uint8 keep those of the last batch")
def stale_bytes(place: Place, fixed: bool) -> Case:
    return _stale(
        place, fixed, place.zeros(4, dtype=torch.uint8), ((1, 2, 0, 3), None),
        lambda x, static: x * static[:, None],
    )  # fmt: skip


@both(WRONG, "shifts as int8 keep those of the last batch")
def stale_int8(place: Place, fixed: bool) -> Case:
    return _stale(
        place, fixed, place.zeros(4, dtype=torch.int8), ((-1, 2, 5, 3), None),
        lambda x, static: x + static[:, None],
    )  # fmt: skip


@both(WRONG, "lengths as int32 keep those of the last batch")
def stale_int32(place: Place, fixed: bool) -> Case:
    return _stale(
        place, fixed, place.zeros(4, dtype=torch.int32), ((4, 2, 8, 1), None),
        lambda x, static: x * (torch.arange(8, device=x.device)[None] < static[:, None]),
    )  # fmt: skip


@both(WRONG, "a block table is filled to the length of each request; the rest is the last one's")
def rest_of_a_block_table(place: Place, fixed: bool) -> Case:
    table, cache, lens = (
        place.zeros(2, 4, dtype=torch.int64),
        place.randn(16, 8),
        place.tensor([4, 4]),
    )
    batches: list[list[list[int]]] = [[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10], [11]]]

    def fill(number: int) -> None:
        for row, blocks in enumerate(batches[number]):
            if fixed:
                table[row] = 0
            table[row, : len(blocks)] = torch.tensor(blocks).to(table.device)
        lens.copy_(torch.tensor([len(blocks) for blocks in batches[number]]).to(lens.device))
        cache[0].zero_()

    def fn(table: Tensor, cache: Tensor, lens: Tensor) -> Tensor:
        return cache[table].sum(1) / lens[:, None]

    def fill_all(number: int) -> None:
        fill(number)
        cache[1:] = place.randn(15, 8)

    static = {"table": table, "cache": cache, "lens": lens}
    return _refilled(fn, static, [lambda: fill_all(0), lambda: fill_all(1)])


PROGRAMS = programs_in(vars())
