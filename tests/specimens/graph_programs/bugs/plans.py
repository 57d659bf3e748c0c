"""Plans and metadata beside the graph: not refreshed, another batch's, or filed under another size."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.specimens.graph_programs.program import Case, Pair, Place, Verdict, both, programs_in

__all__ = ["PROGRAMS"]

WRONG = Verdict.WRONG


@both(
    WRONG, "replay preparation writes the buffer of eager runs", corpus="sgl-project/sglang#37975"
)
def buffer_of_eager_runs(place: Place, fixed: bool) -> Case:
    x, lens = place.randn(4, 8), place.tensor([1, 2, 3, 4])
    static, eager_buffer = place.zeros(5, dtype=torch.int64), place.zeros(5, dtype=torch.int64)

    def prepare(target: Tensor) -> None:
        target[1:] = lens.cumsum(0)

    def fn(x: Tensor, lens: Tensor) -> Tensor:
        return x + static[1:, None]

    def eager(x: Tensor, lens: Tensor) -> Tensor:
        return x + lens.cumsum(0)[:, None]

    prepare(static)

    def step() -> None:
        lens.add_(3)
        prepare(static if fixed else eager_buffer)

    def first() -> None:
        prepare(static)
        place.other(x)()

    return Case(fn, [x, lens], [first, step], options={"eager": eager})


@both(WRONG, "the plan is called once, before the capture", corpus="alibaba/rtp-llm#378")
def plan_before_the_capture(place: Place, fixed: bool) -> Case:
    x, lens = place.randn(4, 8), place.tensor([9, 2, 5, 4])
    plan = place.zeros(4, dtype=torch.int64)

    def make_plan() -> None:
        plan.copy_(lens.argsort())

    make_plan()

    def step() -> None:
        lens.copy_(lens.flip(0))
        if fixed:
            make_plan()

    def same() -> None:
        make_plan()
        place.other(x)()

    return Case(
        lambda x, lens: x[plan] * 2, [x, lens], [same, step],
        options={"eager": lambda x, lens: x[lens.argsort()] * 2},
    )  # fmt: skip


@both(
    WRONG,
    "the table of pages is refreshed, the plan of splits is not",
    corpus="alibaba/rtp-llm#1084",
)
def only_the_pages_are_refreshed(place: Place, fixed: bool) -> Case:
    pages, lens, cache = place.tensor([[1, 2], [3, 0]]), place.tensor([2, 1]), place.randn(8, 8)
    last = place.tensor([1, 0])

    def fn(pages: Tensor, lens: Tensor) -> Tensor:
        return cache[pages.gather(1, last[:, None])[:, 0]]

    def eager(pages: Tensor, lens: Tensor) -> Tensor:
        return cache[pages.gather(1, (lens - 1)[:, None])[:, 0]]

    def step() -> None:
        pages.copy_(torch.tensor([[5, 0], [6, 7]]).to(pages.device))
        lens.copy_(torch.tensor([1, 2]).to(lens.device))
        if fixed:
            last.copy_(lens - 1)

    return Case(fn, [pages, lens], [step], options={"eager": eager})


@both(
    WRONG,
    "inputs are the same for two warm-ups, and the forward lengthens them",
    corpus="NVIDIA/TensorRT-LLM#15913",
)
def lengths_grow_in_the_forward(place: Place, fixed: bool) -> Case:
    x, lens = place.randn(4, 8), place.tensor([1, 2, 3, 4])
    kept = lens.clone()

    def fn(x: Tensor) -> Tensor:
        if fixed:
            kept.copy_(lens)
        kept.add_(1)
        return x * kept[:, None]

    def eager(x: Tensor) -> Tensor:
        return x * (lens + 1)[:, None]

    return Case(fn, [x], [place.other(x)], options={"eager": eager})


@both(
    WRONG,
    "distinct metadata, but views of one buffer that the next build overwrites",
    corpus="vllm-project/vllm#48261",
)
def views_of_one_buffer(place: Place, fixed: bool) -> Pair:
    lens, x, buffer = (
        place.tensor([5, 6, 7, 8]),
        place.randn(4, 8),
        place.zeros(4, dtype=torch.int64),
    )

    @dataclass
    class Metadata:
        num_reqs: int
        starts: Tensor

    def create(desc: int, warmup: bool) -> Any:
        if fixed:
            starts = lens[:desc].cumsum(0)
        else:
            starts = torch.cumsum(lens[:desc], 0, out=buffer[:desc])
            starts = buffer[:desc]
        state = Metadata(desc, starts)

        def forward(mode: str) -> Tensor:
            if fixed:
                torch.cumsum(lens[:desc], 0, out=state.starts)
            return x[:desc] + state.starts[:, None]

        return forward, state

    def other_build() -> None:
        lens.copy_(torch.tensor([1, 1, 9, 9]).to(lens.device))

    return Pair(
        create, {"seq_lens": lens, "x": x}, [other_build, place.other(x)],
        options={"other_descs": [2]},
    )  # fmt: skip


@both(
    WRONG,
    "a graph is looked up by tokens, and two shapes have as many",
    corpus="vllm-project/vllm#46324",
)
def looked_up_by_tokens(place: Place, fixed: bool) -> Case:
    x, shape = place.randn(6, 4), {"rows": 2}
    graphs: dict[Any, Any] = {}

    def forward(rows: int) -> Tensor:
        return x.view(rows, -1, 4).sum(1).sum(0) * rows

    def key(rows: int) -> Any:
        return (rows, 6 // rows) if fixed else 6

    for rows in (2, 3):
        graphs.setdefault(key(rows), place.graph(functools.partial(forward, rows)))

    def replay() -> Any:
        return graphs[key(shape["rows"])]()

    def other_shape() -> None:
        shape["rows"] = 3
        place.other(x)()

    def same_shape() -> None:
        shape["rows"] = 2
        place.other(x)()

    return Case(
        lambda x: forward(shape["rows"]), [x], [same_shape, other_shape],
        options={"replay": replay},
    )  # fmt: skip


@both(WRONG, "a flag that says to run eagerly is not asked", corpus="vllm-project/vllm#32818")
def graph_although_eager_is_wanted(place: Place, fixed: bool) -> Case:
    x, wish = place.randn(4, 8), {"eager": False, "scale": 1.0}

    def forward() -> Tensor:
        return x * wish["scale"]

    graph = place.graph(forward)

    def replay() -> Any:
        return forward() if fixed and wish["eager"] else graph()

    def eagerly() -> None:
        wish.update(eager=True, scale=2.0)

    def graphed() -> None:
        wish.update(eager=False, scale=1.0)
        place.other(x)()

    return Case(lambda x: forward(), [x], [graphed, eagerly], options={"replay": replay})


@both(
    WRONG,
    "three parts of a batch are filed under the size of two",
    corpus="vllm-project/vllm#43145",
)
def filed_under_two_parts(place: Place, fixed: bool) -> Case:
    x = place.randn(6, 8)
    parts: dict[str, tuple[int, ...]] = {"sizes": (3, 3)}
    graphs: dict[Any, Any] = {}

    def forward(sizes: tuple[int, ...]) -> Tensor:
        return torch.stack([part.amax(0) for part in x[: sum(sizes)].split(sizes)]).sum(0)

    def key(sizes: tuple[int, ...]) -> Any:
        return sizes if fixed else sizes[:2]

    for sizes in ((3, 3), (2, 2, 2), (2, 2)):
        graphs[key(sizes)] = place.graph(functools.partial(forward, sizes))

    def three() -> None:
        parts["sizes"] = (2, 2, 2)
        place.other(x)()

    def two() -> None:
        parts["sizes"] = (3, 3)

    return Case(
        lambda x: forward(parts["sizes"]), [x], [three, two],
        options={"replay": lambda: graphs[key(parts["sizes"])]()},
    )  # fmt: skip


@both(
    WRONG, "a decode batch takes the graph of a batch of drafts", corpus="vllm-project/vllm#40831"
)
def graph_of_drafts_for_decode(place: Place, fixed: bool) -> Case:
    x, mode = place.randn(4, 8), {"drafts": False}

    def decode() -> Tensor:
        return x.softmax(-1)

    def verify() -> Tensor:
        return x.view(2, 2, 8).sum(1).softmax(-1).repeat_interleave(2, 0, output_size=4)

    graphs = {True: place.graph(verify), False: place.graph(decode)}

    def replay() -> Any:
        return graphs[mode["drafts"] if fixed else False]()

    def drafts() -> None:
        mode["drafts"] = True

    def plain() -> None:
        mode["drafts"] = False
        place.other(x)()

    return Case(
        lambda x: verify() if mode["drafts"] else decode(), [x], [plain, drafts],
        options={"replay": replay},
    )  # fmt: skip


@both(
    WRONG,
    "scores are summed in half precision in the graph alone",
    corpus="vllm-project/vllm#55238",
)
def other_precision_in_the_graph(place: Place, fixed: bool) -> Case:
    x, w = place.randn(4, 8), place.randn(8, 8)

    def eager() -> Tensor:
        return (x @ w * 3).softmax(-1)

    def in_graph() -> Tensor:
        return eager() if fixed else (x.half() @ w.half() * 3).softmax(-1).float()

    return Case(lambda x: eager(), [x], [place.other(x)], options={"replay": place.graph(in_graph)})


@both(
    WRONG,
    "after a rejected draft the cache is not rolled back before the replay",
    corpus="spiritbuun/buun-llama-cpp#116",
)
def rollback_after_a_rejection(place: Place, fixed: bool) -> Case:
    x, cache, at = place.randn(1, 8), place.zeros(6, 8), place.tensor([2])

    def write(target: Tensor) -> Tensor:
        target.index_copy_(0, at, x)
        return torch.where((torch.arange(6, device=x.device) <= at)[:, None], target, 0.0).sum(0)

    def forget() -> Tensor:
        cache.index_copy_(0, at, x)
        return (
            cache
            if not fixed
            else torch.where((torch.arange(6, device=x.device) <= at)[:, None], cache, 0.0)
        ).sum(0)

    def back() -> None:
        cache[3:5] = 7.0
        at.fill_(1)
        place.other(x)()

    return Case(
        lambda x, cache, at: write(cache), [x, cache, at], [back],
        options={"replay": place.graph(forget)},
    )  # fmt: skip


@both(WRONG, "a replay that failed left the results of before in place", corpus="kekzl/imp#1417")
def failed_replay_leaves_old_results(place: Place, fixed: bool) -> Case:
    x, out = place.randn(4, 8), place.zeros(4, 8)

    def forward() -> Tensor:
        return torch.tanh(x, out=out)

    graph = place.graph(forward)

    def replay() -> Tensor:
        if fixed:
            graph()
        return out

    return Case(lambda x: torch.tanh(x), [x], [place.other(x)], options={"replay": replay})


@both(
    WRONG,
    "results are read right after the capture, which computes nothing",
    corpus="kekzl/imp#1417",
)
def captured_and_never_replayed(place: Place, fixed: bool) -> Case:
    x = place.randn(4, 8)
    once: dict[str, Any] = {}

    def replay() -> Any:
        if "graph" not in once:
            once["result"] = place.graph(lambda: x * 2 + 1)
            once["graph"] = True
            once["last"] = once["result"]()
        return once["result"]() if fixed else once["last"]

    return Case(lambda x: x * 2 + 1, [x], [place.other(x)], options={"replay": replay})


PROGRAMS = programs_in(vars())
