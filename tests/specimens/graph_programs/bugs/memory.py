"""Memory that moves, is too small, is given to somebody else, or is shared by two graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.specimens.graph_programs.program import (
    ONLY_CUDA,
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


class _Cell:
    """Holds a tensor that may be replaced."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _replaced(place: Place, fixed: bool, value: Tensor, new: Any) -> Case:
    """A tensor that a function carries is replaced by a step, or filled."""
    x, cell = place.randn(4, 8), _Cell(value)

    def step() -> None:
        if fixed:
            cell.tensor.copy_(new())
        else:
            cell.tensor = new()

    return Case(lambda x: x * cell.tensor, [x], [step, place.other(x)])


@both(WRONG, "the producer returns new memory each step", corpus="vllm-project/vllm#53915")
def producer_returns_new_memory(place: Place, fixed: bool) -> Case:
    return _replaced(place, fixed, place.randn(4, 8), lambda: place.randn(4, 8))


@both(
    WRONG, "adapters are put into new tensors when one is added", corpus="vllm-project/vllm#40038"
)
def adapters_are_replaced(place: Place, fixed: bool) -> Case:
    return _replaced(place, fixed, place.randn(8), lambda: place.randn(8))


@both(WRONG, "a setter makes a new buffer of the same size", corpus="jcelerier/librediffusion#14")
def setter_makes_a_buffer(place: Place, fixed: bool) -> Case:
    class Stream:
        def __init__(self) -> None:
            self.prompt = place.randn(8)

        def set_prompt(self, prompt: Tensor) -> None:
            if fixed:
                self.prompt.copy_(prompt)
            else:
                self.prompt = prompt.clone()

        def __call__(self, x: Tensor) -> Tensor:
            return x + self.prompt

    x, stream = place.randn(4, 8), Stream()
    return Case(stream, [x], [lambda: stream.set_prompt(place.randn(8)), place.other(x)])


@both(WRONG, "weights are loaded into new parameters", corpus="jcelerier/librediffusion#14")
def weights_are_loaded_anew(place: Place, fixed: bool) -> Case:
    layer, x = torch.nn.Linear(8, 8, device=place.device), place.randn(4, 8)

    def load() -> None:
        fresh = {name: place.randn(*one.shape) for name, one in layer.state_dict().items()}
        layer.load_state_dict(fresh, assign=not fixed)

    def fn(x: Tensor) -> Any:
        with torch.no_grad():
            return layer(x)

    return Case(fn, [x], [load, place.other(x)])


def _grows(place: Place, fixed: bool, resize: Any) -> Case:
    """A workspace that other work makes grow, while a graph holds it."""
    x, cell = place.randn(4, 8), _Cell(place.randn(64, 8) if fixed else place.randn(4, 8))
    large = place.randn(32, 8)

    def fn(x: Tensor) -> Tensor:
        return x.exp() + cell.tensor[:4].sum()

    def larger() -> Tensor:
        if len(cell.tensor) < len(large):
            resize(cell)
        cell.tensor[:32] = large
        return cell.tensor[:32] * 2

    return Case(fn, [x], [place.other(x)], options={"interleave": [larger]})


@both(
    WRONG,
    "a growable workspace is freed as later captures need more",
    corpus="vllm-project/vllm#46067",
)
def growable_workspace(place: Place, fixed: bool) -> Case:
    def resize(cell: _Cell) -> None:
        cell.tensor = torch.zeros(32, 8, device=place.device)

    return _grows(place, fixed, resize)


@both(
    WRONG,
    "a shared workspace was not locked after the profile run",
    corpus="vllm-project/vllm#45487",
)
def workspace_not_locked(place: Place, fixed: bool) -> Case:
    def resize(cell: _Cell) -> None:
        cell.tensor = cell.tensor.new_zeros(64, 8)

    return _grows(place, fixed, resize)


@both(WRONG, "resize_ moves a workspace that a graph uses", corpus="flashinfer-ai/flashinfer#4399")
def workspace_is_resized(place: Place, fixed: bool) -> Case:
    x, workspace = place.randn(4, 8), place.randn(64 if fixed else 4, 8)

    def fn(x: Tensor) -> Tensor:
        workspace[:4] += x
        return workspace[:4] * 2

    def resize() -> None:
        if len(workspace) < 32:
            workspace.resize_(4096, 8)
        workspace[:4] = 1.0

    return Case(fn, [x], [resize, place.other(x)])


@both(
    WRONG, "a cache of workspaces evicts one that a graph uses", corpus="NVIDIA/TensorRT-LLM#16176"
)
def evicted_workspace(place: Place, fixed: bool) -> Case:
    x = place.randn(4, 8)
    kept: dict[int, Tensor] = {}

    def workspace(size: int) -> Tensor:
        if size not in kept:
            if not fixed:
                kept.clear()
            kept[size] = torch.zeros(size, 8, device=place.device)
        return kept[size]

    def fn(x: Tensor) -> Tensor:
        held = workspace(4)
        held.add_(x)
        return held * 2

    def other_size() -> None:
        workspace(4).fill_(0.5)
        workspace(8)
        workspace(4).fill_(1.5)

    return Case(fn, [x], [other_size, place.other(x)])


@both(
    WRONG,
    "the capture size is larger than the buffers, and rows land in the next one",
    corpus="vllm-project/vllm#41016",
)
def rows_past_the_buffer(place: Place, fixed: bool) -> Case:
    memory, x, live = place.zeros(12, 8), place.randn(6, 8), [6]
    size = 6 if fixed else 4
    buffer, neighbor = memory[:size], memory[size : size + 4]

    def fn(x: Tensor) -> Tensor:
        memory[:6].copy_(x)  # what a kernel does that knows no end
        return buffer[:4] + neighbor

    def eager(x: Tensor) -> Tensor:
        held = neighbor.clone()
        return x[:4] + held if fixed else x[:4] + memory[size : size + 4]

    def fill() -> None:
        neighbor.fill_(3.0)
        place.other(x)()

    del live
    return Case(fn, [x], [fill], options={"eager": eager})


@both(
    WRONG,
    "metadata are as long as the context, without room for drafts",
    corpus="sgl-project/sglang#29695",
)
def no_room_for_drafts(place: Place, fixed: bool) -> Case:
    memory, lens = place.zeros(16, dtype=torch.int64) + 5, place.tensor([6])
    room = 12 if fixed else 8

    def fn(lens: Tensor) -> Tensor:
        other = memory[room : room + 2]
        at = torch.arange(4, device=lens.device) + lens
        memory.index_copy_(0, at, at)
        return other * 2

    def eager(lens: Tensor) -> Tensor:
        return torch.full((2,), 10, device=lens.device)

    def fill() -> None:
        memory.fill_(5)
        lens.fill_(7)

    return Case(fn, [lens], [fill, fill], options={"eager": eager, "poison": False})


# ---- pools


@both(
    WRONG,
    "the output of an earlier size lies where a later size computes",
    corpus="sgl-project/sglang#37606",
    backends=ONLY_CUDA,
)
def output_of_an_earlier_size(place: Place, fixed: bool) -> Case:
    x, pool = place.randn(64, 64), place.pool()
    large = _without_reference(place, lambda: x * 2, pool, keep=fixed)
    small = _without_reference(place, lambda: x.exp().log(), pool, keep=fixed)

    def replay() -> Tensor:
        result: Tensor = large()
        small()
        return result * 1

    return Case(lambda x: x * 2, [x], [place.other(x)], options={"replay": replay})


@both(
    WRONG,
    "target and draft capture in one pool, and both results are needed",
    corpus="sgl-project/sglang#22930",
    backends=ONLY_CUDA,
)
def target_and_draft_in_one_pool(place: Place, fixed: bool) -> Case:
    x, pool = place.randn(64, 64), place.pool()
    target = _without_reference(place, lambda: x @ x, pool, keep=False)
    draft = _without_reference(place, lambda: x + 3, place.pool() if fixed else pool, keep=False)

    def replay() -> tuple[Tensor, Tensor]:
        first, second = target(), draft()
        return first * 1, second * 1

    return Case(lambda x: (x @ x, x + 3), [x], [place.other(x)], options={"replay": replay})


def _without_reference(place: Place, fn: Any, pool: Any, *, keep: bool) -> Any:
    """Capture; unless ``keep``, the pool may give the result's memory to the next capture."""
    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = fn()
    pointer, like = result.data_ptr(), torch.empty_like(result, device="meta")
    held = [result] if keep else []
    del result

    def replay() -> Tensor:
        graph.replay()
        return held[0] if held else _at(pointer, like)

    return replay


def _at(pointer: int, like: Tensor) -> Tensor:
    """Return a tensor on memory that is held by an address alone, as a weak reference would."""
    storage = torch._C._construct_storage_from_data_pointer(
        pointer, torch.device("cuda", 0), like.numel() * like.element_size()
    )
    return torch.empty(0, dtype=like.dtype, device="cuda").set_(
        storage, 0, like.shape, like.stride()
    )


@both(
    WRONG,
    "a graph's output is held by an address alone",
    corpus="vllm-project/vllm-ascend#16794",
    backends=ONLY_CUDA,
)
def output_held_by_its_address(place: Place, fixed: bool) -> Case:
    x, pool = place.randn(64, 64), place.pool()
    one = _without_reference(place, lambda: x * 2, pool, keep=fixed)
    two = _without_reference(place, lambda: x + 1, pool, keep=True)

    def replay() -> tuple[Tensor, Tensor]:
        first, second = one(), two()
        return first * 1, second * 1

    return Case(lambda x: (x * 2, x + 1), [x], [place.other(x)], options={"replay": replay})


@both(
    WRONG,
    "results of one graph are read after another of the pool has run",
    corpus="NVIDIA/TensorRT-LLM#16290",
    backends=ONLY_CUDA,
)
def read_after_another_graph(place: Place, fixed: bool) -> Case:
    x, pool = place.randn(64, 64), place.pool()
    one = _without_reference(place, lambda: x.sin(), pool, keep=False)
    two = _without_reference(place, lambda: x.cos(), pool, keep=False)

    def replay() -> tuple[Tensor, Tensor]:
        first = one()
        first = first.clone() if fixed else first
        second = two()
        return first * 1, second * 1

    return Case(lambda x: (x.sin(), x.cos()), [x], [place.other(x)], options={"replay": replay})


@both(WRONG, "a workspace of the profiling graph goes with it", corpus="vllm-project/vllm#53682")
def workspace_of_the_profiling_graph(place: Place, fixed: bool) -> Case:
    x, kept = place.randn(4, 8), {}

    def forward() -> Tensor:
        if "workspace" not in kept:
            kept["workspace"] = torch.empty(4, 8, device=x.device)
        kept["workspace"].copy_(x)
        return kept["workspace"] * 2

    forward()

    def renew() -> None:
        if not fixed:
            kept["workspace"] = torch.empty(4, 8, device=x.device)

    graph = place.graph_as_it_is(forward)
    result = {"graph": graph}

    def replay() -> Any:
        result["graph"]()
        return kept["workspace"] + 0

    return Case(lambda x: x * 1, [x], [renew, place.other(x)], options={"replay": replay})


@both(
    WRONG,
    "one graph of a cache owns the workspace of all, and is reset",
    corpus="vllm-project/vllm-omni#6587",
)
def owner_of_the_workspace_is_reset(place: Place, fixed: bool) -> Case:
    x, workspace = place.randn(4, 8), [place.zeros(4, 8)]

    def forward() -> Tensor:
        workspace[0].copy_(x)
        return workspace[0].cumsum(0)

    graph = place.graph(forward)
    held = workspace[0] if fixed else None

    def evict() -> None:
        if not fixed:
            workspace[0] = place.zeros(4, 8)
            workspace[0].fill_(1.0)
        place.other(x)()

    def replay() -> Any:
        graph()
        return (held if held is not None else workspace[0]) + 0

    return Case(lambda x: x * 1, [x], [evict], options={"replay": replay})


@both(
    WRONG,
    "a staging buffer is filled for another batch before the replay",
    corpus="microsoft/onnxruntime#32121",
)
def staging_for_another_batch(place: Place, fixed: bool) -> Case:
    staging, x = place.zeros(8), place.randn(8)
    own = place.zeros(8)

    def prepare() -> None:
        (own if fixed else staging).copy_(x)

    def fn(x: Tensor) -> Tensor:
        return (own if fixed else staging) * 2

    def other() -> Tensor:
        staging.fill_(9.0)
        return staging + 1

    prepare()

    def refill() -> None:
        place.other(x)()
        prepare()

    return Case(
        fn, [x], [refill],
        options={"eager": lambda x: own * 2 if fixed else x * 2, "interleave": [other],
                 "poison": fixed},
    )  # fmt: skip


@right("outputs of two sizes share their static buffer on purpose")
def sizes_share_their_output(place: Place) -> Case:
    out, x, large = place.zeros(16, 8), place.randn(4, 8), place.randn(16, 8)

    def run(x: Tensor) -> Tensor:
        torch.sin(x, out=out[: len(x)])
        return out[: len(x)]

    return Case(run, [x], [place.other(x)], options={"interleave": [lambda: run(large)]})


@right("memory is taken and given back within the graph many times")
def memory_is_taken_and_given_back(place: Place) -> Case:
    x = place.randn(16, 16)

    def fn(x: Tensor) -> Tensor:
        for _ in range(12):
            x = (x @ x.T).tanh() + x
        return x

    return Case(fn, [x], [place.other(x)])


@right("a pair whose graph writes its results to a static buffer")
def pair_with_a_static_output(place: Place) -> Pair:
    x, out, w = place.randn(4, 8), place.zeros(4, 8), place.randn(8, 8)

    def create(desc: int, warmup: bool) -> Any:
        def forward(mode: str) -> None:
            torch.mm(x, w, out=out)

        return forward, {"x": x}

    return Pair(create, {"x": x}, [place.other(x)], options={"outputs": lambda: out})


PROGRAMS = programs_in(vars())
