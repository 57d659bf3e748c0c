"""Numbers, lists and branches of Python that a graph keeps from its capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.specimens.graph_programs.program import (
    Case,
    Pair,
    Place,
    Verdict,
    both,
    programs_in,
    right,
)

__all__ = ["PROGRAMS"]

WRONG = Verdict.WRONG


@both(
    WRONG,
    "the longest sequence is a number, and bounds what is attended to",
    corpus="vllm-project/vllm#19106",
)
def longest_sequence(place: Place, fixed: bool) -> Case:
    x, cache, lens, longest = place.randn(4, 8), place.randn(16, 8), place.tensor([3, 5, 2, 7]), [7]

    def fn(x: Tensor, cache: Tensor, lens: Tensor) -> Tensor:
        seen = cache[: 16 if fixed else longest[0]]
        at = torch.arange(len(seen), device=x.device)
        scores = (x @ seen.T).masked_fill(at[None] >= lens[:, None], float("-inf"))
        return scores.softmax(-1) @ seen

    def longer() -> None:
        lens.add_(8)
        longest[0] = 15

    return Case(fn, [x, cache, lens], [longer, place.other(x)])


@both(
    WRONG,
    "the number of rows that are live is a number of Python",
    corpus="vllm-project/vllm#19106",
)
def live_rows(place: Place, fixed: bool) -> Case:
    x, live, count = place.randn(4, 8), place.tensor(4), [4]

    def fn(x: Tensor, live: Tensor) -> Tensor:
        if fixed:
            mask = torch.arange(4, device=x.device) < live
            return torch.where(mask[:, None], x, 0.0).sum(0)
        return x[: count[0]].sum(0)

    def fewer() -> None:
        live.fill_(2)
        count[0] = 2

    return Case(fn, [x, live], [fewer])


@right(
    "a count of splits is kept from the capture: slower and not wrong",
    corpus="vllm-project/vllm#51119",
)
def count_of_splits(place: Place) -> Case:
    x, splits = place.randn(4, 8), [1]

    def fn(x: Tensor) -> Tensor:
        return torch.cat([part.softmax(-1) for part in x.chunk(splits[0], 0)])

    def more() -> None:
        splits[0] = 4

    return Case(fn, [x], [more, place.other(x)])


@both(WRONG, "a loop over lengths on the host writes the cache", corpus="NVIDIA/TensorRT-LLM#17110")
def loop_over_lengths(place: Place, fixed: bool) -> Case:
    x, cache, lens, host = (
        place.randn(4, 8),
        place.zeros(4, 9, 8),
        place.tensor([1, 3, 0, 2]),
        [1, 3, 0, 2],
    )

    def fn(x: Tensor, cache: Tensor, lens: Tensor) -> Tensor:
        if fixed:
            cache.index_put_((torch.arange(4, device=x.device), lens), x)
        else:
            for row, at in enumerate(host):
                cache[row, at] = x[row]
        return cache.sum((0, 2))

    def next_step() -> None:
        lens.add_(1)
        host[:] = [at + 1 for at in (1, 3, 0, 2)]

    return Case(fn, [x, cache, lens], [next_step])


@both(
    WRONG, "a name of Python is bound to the result of each step", corpus="pytorch/pytorch#114844"
)
def name_is_rebound(place: Place, fixed: bool) -> Case:
    class Model:
        def __init__(self) -> None:
            self.hidden = place.zeros(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            if fixed:
                self.hidden.copy_((self.hidden + x).tanh())
            else:
                self.hidden = (self.hidden + x).tanh()
            return self.hidden * 2

    model, x = Model(), place.randn(4, 8)
    return Case(model.forward, [x], [place.other(x)] * 2)


@both(WRONG, "a counter of Python numbers the steps", corpus="pytorch/pytorch#114844")
def counter_of_python(place: Place, fixed: bool) -> Case:
    x, counted, steps = place.randn(4, 8), place.zeros(1), [0]

    def fn(x: Tensor) -> Tensor:
        steps[0] += 1
        counted.add_(1)
        return x * (counted if fixed else steps[0])

    return Case(fn, [x], [place.other(x)] * 2)


@both(
    WRONG,
    "the bias of blocks is made of lengths on the host",
    corpus="facebookresearch/xformers#968",
)
def bias_of_host_lengths(place: Place, fixed: bool) -> Case:
    x, ends, host = place.randn(6, 8), place.tensor([2, 6]), [2, 6]

    def fn(x: Tensor, ends: Tensor) -> Tensor:
        if fixed:
            block = torch.searchsorted(ends, torch.arange(6, device=x.device), right=True)
            mask = block[:, None] == block[None]
        else:
            mask = torch.zeros(6, 6, dtype=torch.bool, device=x.device)
            for start, end in zip([0, *host], host, strict=False):
                mask[start:end, start:end] = True
        return (x @ x.T).masked_fill(~mask, float("-inf")).softmax(-1) @ x

    def other() -> None:
        ends.copy_(ends + torch.tensor([2, 0]).to(ends.device))
        host[0] = 4

    return Case(fn, [x, ends], [other, place.other(x)])


@both(
    WRONG,
    "the greatest length of keys bounds a padded batch",
    corpus="Dao-AILab/flash-attention#1164",
)
def padded_to_the_longest(place: Place, fixed: bool) -> Case:
    x, lens, longest = place.randn(2, 8, 4), place.tensor([3, 4]), [4]

    def fn(x: Tensor, lens: Tensor) -> Tensor:
        keys = x if fixed else x[:, : longest[0]]
        at = torch.arange(keys.shape[1], device=x.device)
        return keys.masked_fill((at[None] >= lens[:, None])[..., None], 0.0).sum(1)

    def longer() -> None:
        lens.add_(4)
        longest[0] = 8

    return Case(fn, [x, lens], [longer])


@both(
    WRONG,
    "starts of sequences are Python numbers; a batch is mixed otherwise",
    corpus="pytorch/torchtitan#3893",
)
def starts_of_sequences(place: Place, fixed: bool) -> Case:
    x, starts, host = place.randn(6, 8), place.tensor([0, 2, 6]), [0, 2, 6]

    def fn(x: Tensor, starts: Tensor) -> Tensor:
        if fixed:
            sums = torch.cat([x.new_zeros(1, 8), x.cumsum(0)])
            return sums[starts[1:]] - sums[starts[:-1]]
        return torch.stack([x[a:b].sum(0) for a, b in zip(host, host[1:], strict=False)])

    def mixed() -> None:
        host[1] = 5
        starts[1:2].add_(3)

    return Case(fn, [x, starts], [mixed, place.other(x)])


@both(WRONG, "a flag of the request chooses a branch")
def flag_chooses(place: Place, fixed: bool) -> Case:
    x, greedy, flag = place.randn(4, 8), place.zeros(1, dtype=torch.bool), {"greedy": False}

    def fn(x: Tensor, greedy: Tensor) -> Tensor:
        if fixed:
            return torch.where(greedy, x.amax(-1), x.mean(-1))
        return x.amax(-1) if flag["greedy"] else x.mean(-1)

    def turn() -> None:
        flag["greedy"] = True
        greedy.fill_(True)

    return Case(fn, [x, greedy], [turn])


@both(WRONG, "a temperature is a number of the settings")
def temperature(place: Place, fixed: bool) -> Case:
    x, heat, settings = place.randn(4, 8), place.tensor(1.0), {"heat": 1.0}

    def fn(x: Tensor, heat: Tensor) -> Tensor:
        return (x / (heat if fixed else settings["heat"])).softmax(-1)

    def hotter() -> None:
        settings["heat"] = 3.0
        heat.fill_(3.0)

    return Case(fn, [x, heat], [hotter])


@both(WRONG, "an index of the step picks a row of a table")
def row_of_the_step(place: Place, fixed: bool) -> Case:
    x, table, at, step = place.randn(4, 8), place.randn(5, 8), place.tensor([0]), [0]

    def fn(x: Tensor, at: Tensor) -> Tensor:
        return x + (table.index_select(0, at) if fixed else table[step[0]])

    def advance() -> None:
        step[0] = 3
        at.fill_(3)

    return Case(fn, [x, at], [advance])


@both(WRONG, "a generator of Python hands out another weight each step")
def iterator_of_python(place: Place, fixed: bool) -> Case:
    x, weights = place.randn(4, 8), [0.5, 1.5, 2.5, 3.5]
    table, at, count = place.tensor(weights), place.zeros(1, dtype=torch.int64), [0]

    def fn(x: Tensor) -> Tensor:
        weight: Any = weights[count[0] % 4]
        count[0] += 1
        if fixed:
            weight = table.index_select(0, at % 4)
            at.add_(1)
        return x * weight

    return Case(fn, [x], [place.other(x)] * 3)


@both(WRONG, "a list of tensors grows by one in each call")
def list_that_grows(place: Place, fixed: bool) -> Case:
    x, seen, total = place.randn(4, 8), [], place.zeros(4, 8)

    def fn(x: Tensor) -> Tensor:
        if fixed:
            return total.add_(x).clone()
        seen.append(x.clone())
        return torch.stack(seen).sum(0)

    return Case(fn, [x], [place.other(x)] * 2)


@both(
    WRONG, "which adapter is active is an attribute of the layer", corpus="vllm-project/vllm#40038"
)
def active_adapter(place: Place, fixed: bool) -> Case:
    x, down, up, which = (
        place.randn(4, 8),
        place.randn(3, 8, 2),
        place.randn(3, 2, 8),
        place.tensor([0] * 4),
    )
    layer = {"adapter": 0}

    def fn(x: Tensor, which: Tensor) -> Tensor:
        if fixed:
            return x + torch.einsum("rw,rwk,rko->ro", x, down[which], up[which])
        return x + x @ down[layer["adapter"]] @ up[layer["adapter"]]

    def other() -> None:
        layer["adapter"] = 2
        which.fill_(2)

    return Case(fn, [x, which], [other])


@both(
    WRONG, "a length in the state of a pair is a number of Python", corpus="vllm-project/vllm#19106"
)
def number_in_the_state(place: Place, fixed: bool) -> Pair:
    lens, x = place.tensor([1, 2, 3, 4]), place.randn(4, 8)
    host = {"longest": 4}

    def create(desc: int, warmup: bool) -> Any:
        state = {"seq_lens": lens, "longest": host["longest"]}

        def forward(mode: str) -> Tensor:
            longest: Any = lens.amax() if fixed else state["longest"]
            return x * longest + lens[:, None]

        return forward, state

    def longer() -> None:
        lens.fill_(9)
        host["longest"] = 9

    def change_only() -> None:
        place.other(x)()
        host["longest"] = 4

    return Pair(create, {"seq_lens": lens, "x": x}, [longer, change_only])


PROGRAMS = programs_in(vars())
