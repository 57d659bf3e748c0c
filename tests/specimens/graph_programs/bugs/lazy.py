"""What the warm-up makes and the capture does not: plans, scales, workspaces, flags.

The buggy forms keep it; the fixed ones make it in every forward. Below them are lazily made things
that depend on no input, which are right.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
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

MLA, MLA_36611 = "vllm-project/vllm#42444", "vllm-project/vllm#36611"
PAIR = "vllm-project/vllm#44253"
WRONG = Verdict.WRONG


def _norm(x: Tensor) -> Tensor:
    """Normalize rows, with the kernels that plans use, too."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1.0)


def _pair(place: Place, forward: Any, lens: Tensor, x: Tensor, **options: Any) -> Pair:
    """A pair whose states are distinct and hold nothing but the lengths."""

    def create(desc: int, warmup: bool) -> Any:
        state = {"seq_lens": lens}
        return lambda mode: forward(state["seq_lens"]), state

    change = [lambda: lens.copy_(lens.flip(0) + 3), place.other(x)]
    return Pair(create, {"seq_lens": lens, "x": x}, change, options=options)


@both(
    WRONG, "the plan lies on the layer; its kernel is one that the model uses elsewhere", corpus=MLA
)
def plan_of_a_common_kernel(place: Place, fixed: bool) -> Pair:
    lens, x, kept = place.ints(1, 50, 4), place.randn(4, 8), {}

    def forward(lens: Tensor) -> Tensor:
        hidden = _norm(x)
        if fixed or "plan" not in kept:
            kept["plan"] = torch.rsqrt(lens.float() + 1.0)
        return _norm(hidden * kept["plan"][:, None]) + lens[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "a planner fills a buffer that was allocated before", corpus=MLA)
def planner_fills_a_buffer(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)
    buffer, kept = place.zeros(4), {"planned": False}

    def forward(lens: Tensor) -> Tensor:
        if fixed or not kept["planned"]:
            buffer.copy_(1.0 / lens)
            kept["planned"] = True
        return x * buffer[:, None] + lens[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "a planner fills a buffer by out=, with kernels that run anyway", corpus=MLA)
def planner_fills_by_out(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)
    starts = place.zeros(4, dtype=torch.int64)
    kept: dict[str, bool] = {}

    def forward(lens: Tensor) -> Tensor:
        order = lens.cumsum(0)  # as for other metadata
        if fixed or not kept:
            torch.cumsum(lens, 0, out=starts)
            kept["done"] = True
        return x + starts[:, None] * 0.5 + order[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "the layer counts its calls, too, so that it changes in each of them", corpus=MLA)
def plan_beside_a_counter(place: Place, fixed: bool) -> Pair:
    class Layer:
        calls, plan = 0, None

        def forward(self, lens: Tensor) -> Tensor:
            self.calls += 1
            if fixed or self.plan is None:
                self.plan = lens.float().log1p()
            return x * self.plan[:, None] + lens.float().log1p()[:, None].sum()

    lens, x, layer = place.ints(1, 50, 4), place.randn(4, 8), Layer()
    return _pair(place, layer.forward, lens, x)


@both(WRONG, "plans are kept by the size of the batch", corpus=MLA)
def plan_by_size(place: Place, fixed: bool) -> Pair:
    lens, x, plans = place.ints(1, 50, 4), place.randn(4, 8), {}

    def forward(lens: Tensor) -> Tensor:
        if fixed or len(lens) not in plans:
            plans[len(lens)] = (lens * 2 - 1).float()
        return x * plans[len(lens)][:, None] + (lens * 2)[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "a generation says whether the plan is new; the warm-up raises it", corpus=MLA)
def plan_of_a_generation(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)
    kept: dict[str, Any] = {"wanted": 1, "made": 0, "plan": place.zeros(4)}

    def forward(lens: Tensor) -> Tensor:
        if fixed or kept["made"] < kept["wanted"]:
            kept["plan"].copy_(lens.float().sqrt())
            kept["made"] = kept["wanted"]
        return x + kept["plan"][:, None] + lens.float().sqrt().sum()

    return _pair(place, forward, lens, x)


@both(WRONG, "two kernels plan, and one of them is skipped", corpus=MLA)
def half_of_the_plan(place: Place, fixed: bool) -> Pair:
    lens, x, kept = place.ints(1, 50, 4), place.randn(4, 8), {}

    def forward(lens: Tensor) -> Tensor:
        parts = (lens + 7) // 8
        if fixed or "starts" not in kept:
            kept["starts"] = parts.cumsum(0)
        return x * parts[:, None] + kept["starts"][:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "the plan of the first layer serves the second, and is the warm-up's", corpus=PAIR)
def plan_for_two_layers(place: Place, fixed: bool) -> Pair:
    lens, x, kept = place.ints(1, 50, 4), place.randn(4, 8), {}

    def layer(number: int, hidden: Tensor, lens: Tensor) -> Tensor:
        if "plan" not in kept or (fixed and number == 0):
            kept["plan"] = torch.rsqrt(lens.float())
        return _norm(hidden * kept["plan"][:, None])

    def forward(lens: Tensor) -> Tensor:
        return layer(1, layer(0, x, lens), lens) + lens[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "the scheduler's object is made for each pass, its buffer is one", corpus=PAIR)
def flag_is_new_and_buffer_old(place: Place, fixed: bool) -> Pair:
    lens, x, buffer = place.ints(1, 50, 4), place.randn(4, 8), place.zeros(4)
    planned: set[int] = set()

    @dataclass
    class Schedule:
        seq_lens: Tensor
        buffer: Tensor = field(default_factory=lambda: buffer)

    def create(desc: int, warmup: bool) -> Any:
        state = Schedule(lens)

        def forward(mode: str) -> Tensor:
            if fixed or id(buffer) not in planned:
                state.buffer.copy_(state.seq_lens.float().rsqrt())
                planned.add(id(buffer))
            return x * state.buffer[:, None] + state.seq_lens[:, None]

        return forward, state

    change = [lambda: lens.add_(9), place.other(x)]
    return Pair(create, {"seq_lens": lens, "x": x, "buffer": buffer}, change)


@both(WRONG, "the plan is made while the metadata are built, outside the graph", corpus=MLA_36611)
def plan_outside_the_graph(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)

    def create(desc: int, warmup: bool) -> Any:
        state = {"seq_lens": lens, "tiles": (lens + 15) // 16}

        def forward(mode: str) -> Tensor:
            tiles = (state["seq_lens"] + 15) // 16 if fixed else state["tiles"]
            return x * tiles[:, None] + state["seq_lens"][:, None]

        return forward, state

    change = [lambda: lens.add_(40), place.other(x)]
    return Pair(create, {"seq_lens": lens, "x": x}, change)


@both(WRONG, "metadata are completed by whoever uses them first, and are one object", corpus=PAIR)
def metadata_of_the_target_model(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)

    @dataclass
    class Metadata:
        seq_lens: Tensor
        starts: Tensor | None = None

    one = Metadata(lens)

    def create(desc: int, warmup: bool) -> Any:
        state = {"layers.0": Metadata(lens) if fixed else one}

        def forward(mode: str) -> Tensor:
            metadata = state["layers.0"]
            if metadata.starts is None:
                metadata.starts = metadata.seq_lens.cumsum(0)
            return x + metadata.starts[:, None]

        return forward, state

    return Pair(create, {"seq_lens": lens, "x": x}, [lambda: lens.add_(5), place.other(x)])


@both(
    WRONG,
    "the warm-up keeps its own scale: the largest value of its input",
    corpus="tracel-ai/burn#5772",
)
def scale_of_the_first_input(place: Place, fixed: bool) -> Case:
    x, kept = place.randn(4, 8), {}

    def fn(x: Tensor) -> Tensor:
        if fixed or "scale" not in kept:
            kept["scale"] = x.abs().amax()
        return x / kept["scale"]

    def larger() -> None:
        x.mul_(7)

    return Case(fn, [x], [larger], fresh=True, options={"eager": lambda x: x / x.abs().amax()})


@both(
    WRONG,
    "a decision that the warm-up takes with a tensor of its own",
    corpus="tracel-ai/burn#5772",
)
def decision_of_the_warmup(place: Place, fixed: bool) -> Pair:
    lens, x, kept = place.ints(1, 50, 4), place.randn(4, 8), {}

    def forward(lens: Tensor) -> Tensor:
        if fixed or "mask" not in kept:
            kept["mask"] = lens > 25
        return torch.where(kept["mask"][:, None], x, -x) + (lens > 0)[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "functools.cache keeps what a method made of the object's tensors", corpus=MLA)
def cached_method(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)

    class Planner:
        def plan(self) -> Tensor:
            return torch.rsqrt(lens.float())

    planner = Planner()
    cached = functools.cache(planner.plan)

    def forward(lens: Tensor) -> Tensor:
        plan = planner.plan() if fixed else cached()
        return _norm(x) * plan[:, None] + lens[:, None]

    return _pair(place, forward, lens, x)


@both(WRONG, "a property that is made once holds the mask of the first lengths", corpus=MLA)
def cached_property_of_metadata(place: Place, fixed: bool) -> Pair:
    lens, x = place.ints(1, 8, 4), place.randn(4, 8)

    class Metadata:
        @functools.cached_property
        def once(self) -> Tensor:
            return self.mask()

        def mask(self) -> Tensor:
            return torch.arange(8, device=lens.device)[None] < lens[:, None]

    metadata = Metadata()

    def create(desc: int, warmup: bool) -> Any:
        def forward(mode: str) -> Tensor:
            mask = metadata.mask() if fixed else metadata.once
            return x.masked_fill(~mask, 0.0) + lens[:, None]

        return forward, {"seq_lens": lens}

    change = [lambda: lens.copy_(9 - lens), place.other(x)]
    return Pair(create, {"seq_lens": lens, "x": x}, change)


# ---- lazily made, and right


def _kept_by(make: Any) -> Any:
    def build(place: Place) -> Pair:
        lens, x, kept = place.ints(0, 8, 4), place.randn(4, 8), {}

        def forward(lens: Tensor) -> Tensor:
            if "made" not in kept:
                kept["made"] = make(place)
            return x * kept["made"][lens] + lens[:, None]

        def create(desc: int, warmup: bool) -> Any:
            state = {"seq_lens": lens}
            return lambda mode: forward(state["seq_lens"]), state

        change = [lambda: lens.copy_(7 - lens), place.other(x)]
        return Pair(create, {"seq_lens": lens, "x": x}, change)

    return build


@right("a table of sines is made once and depends on no input")
def table_of_sines(place: Place) -> Pair:
    made: Pair = _kept_by(lambda p: torch.arange(64.0, device=p.device).view(8, 8).sin())(place)
    return made


@right("a mask is made once for the longest length")
def mask_made_once(place: Place) -> Pair:
    made: Pair = _kept_by(lambda p: torch.ones(8, 8, device=p.device).tril())(place)
    return made


@right("a table is made once of weights that never change")
def table_of_weights(place: Place) -> Pair:
    weight = place.randn(8, 8)
    made: Pair = _kept_by(lambda p: weight.softmax(-1))(place)
    return made


@right("a workspace is made at the first call, and each call fills it before it reads it")
def workspace_made_once(place: Place) -> Pair:
    lens, x, kept = place.ints(1, 50, 4), place.randn(4, 8), {}

    def forward(lens: Tensor) -> Tensor:
        if "workspace" not in kept:
            kept["workspace"] = torch.empty(4, 8, device=x.device)
        torch.mul(x, lens[:, None], out=kept["workspace"])
        return kept["workspace"].exp().log1p()

    return _pair(place, forward, lens, x)


@right("a workspace is zeroed at the first call, and only ever used up to what was just written")
def zeroed_once_and_overwritten(place: Place) -> Pair:
    lens, x, kept = place.ints(1, 50, 4), place.randn(4, 8), {}

    def forward(lens: Tensor) -> Tensor:
        if "workspace" not in kept:
            kept["workspace"] = torch.zeros(8, 8, device=x.device)
        kept["workspace"][:4] = x * lens[:, None]
        return kept["workspace"][:4] + 1

    return _pair(place, forward, lens, x)


@right("weights are packed at the first call")
def weights_packed_once(place: Place) -> Case:
    layer, x, kept = torch.nn.Linear(8, 8, device=place.device), place.randn(4, 8), {}

    def fn(x: Tensor) -> Tensor:
        if "packed" not in kept:
            kept["packed"] = layer.weight.detach().t().contiguous()
        return x @ kept["packed"] + layer.bias.detach()

    return Case(fn, [x], [place.other(x)])


@right("the state of an optimizer is made by the first step")
def optimizer_state_made_once(place: Place) -> Case:
    x, kept = place.randn(4, 8), {}

    def fn(x: Tensor) -> Tensor:
        if "velocity" not in kept:
            kept["velocity"] = torch.zeros_like(x)
        kept["velocity"].mul_(0.9).add_(x)
        return kept["velocity"] * 0.1

    return Case(fn, [x], [place.other(x)] * 2)


@right("metadata with a plan of their own for each pass")
def new_metadata_for_each_pass(place: Place) -> Pair:
    lens, x = place.ints(1, 50, 4), place.randn(4, 8)

    def create(desc: int, warmup: bool) -> Any:
        state: dict[str, Any] = {"seq_lens": lens, "plan": None, "ready": False}

        def forward(mode: str) -> Tensor:
            if not state["ready"]:
                state["plan"], state["ready"] = lens.float().rsqrt(), True
            return _norm(x) * state["plan"][:, None]

        return forward, state

    return Pair(create, {"seq_lens": lens, "x": x}, [lambda: lens.add_(5), place.other(x)])


PROGRAMS = programs_in(vars())
