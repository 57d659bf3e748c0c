"""Random numbers, compiled code, custom operators, Triton kernels, collectives, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.specimens.graph_programs.program import (
    ONLY_CUDA,
    Case,
    Place,
    Program,
    Verdict,
    line,
    programs_in,
    refused,
    right,
    wrong,
)

__all__ = ["PROGRAMS"]

DRAWS: dict[str, Callable[..., Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "rand": lambda x: x + torch.rand(4, 8, device=x.device),
    "randn_like": lambda x: x + torch.randn_like(x),
    "randint": lambda x: x + torch.randint(0, 1000, (4, 8), device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid() * 0 + 0.5),
    "uniform in place": lambda x: torch.empty_like(x).uniform_(0, 2) + x,
    "normal of numbers": lambda x: torch.normal(0.0, 1.0, (4, 8), device=x.device) + x,
    "exponential, for sampling": lambda x: x.softmax(-1) / torch.empty_like(x).exponential_(),
    "Gumbel": lambda x: F.gumbel_softmax(x),
    "feature dropout": lambda image: F.dropout2d(image.repeat(1, 8, 1, 1)),
    "dropout within attention": lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
    "permutation": lambda x: x[torch.rand(4, device=x.device).argsort()] + torch.rand_like(x),
}


def _scaled(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).relu() * 2 + 1


@right("a function of torch.compile")
def compiled_function(place: Place) -> Case:
    x, w = place.randn(4, 8), place.randn(8, 8)
    return Case(torch.compile(_scaled), [x, w], [place.other(x), place.other(w)])


@right("a compiled function that changes its input")
def compiled_in_place(place: Place) -> Case:
    def fn(x: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return x.sum(-1)

    x = place.randn(4, 8)
    return Case(torch.compile(fn), [x], [place.other(x)])


@right("compiled by a backend that only traces")
def traced_function(place: Place) -> Case:
    x, w = place.randn(4, 8), place.randn(8, 8)
    fn = torch.compile(_scaled, backend="aot_eager")
    return Case(fn, [x, w], [place.other(x), place.other(w)])


@right("a compiled module that keeps a cache")
def compiled_module_with_a_cache(place: Place) -> Case:
    class Kept(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
        cache: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", place.zeros(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            self.cache.mul_(0.5).add_(x)
            return self.cache.relu()

    x, module = place.randn(4, 8), Kept()
    return Case(torch.compile(module), [x], [place.other(x)] * 2)


@right("a custom operator of torch.library that returns new memory")
def custom_operator(place: Place) -> Case:
    with torch.library._scoped_library("graph_programs", "FRAGMENT"):

        @torch.library.custom_op(  # type: ignore[untyped-decorator]
            "graph_programs::doubled", mutates_args=()
        )
        def doubled(x: Tensor) -> Tensor:
            return x * 2

    x = place.randn(4, 8)
    return Case(lambda x: doubled(x) + 1, [x], [place.other(x)])


@right("torch.while_loop would ask the device; a loop of fixed length does not")
def loop_of_fixed_length(place: Place) -> Case:
    x, n = place.randn(4, 8), place.tensor(3)

    def fn(x: Tensor, n: Tensor) -> Tensor:
        for step in range(6):
            x = torch.where(n > step, x.sin(), x)
        return x

    return Case(fn, [x, n], [lambda: n.fill_(5), place.other(x)])


@refused("torch.cond asks the device which branch to take")
def branch_of_cond(place: Place) -> Case:
    def fn(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


def _group(place: Place) -> None:
    """Make the group of one rank; whoever runs the program ends it."""
    if not dist.is_initialized():
        backend = "nccl" if place.backend == "cuda" else "gloo"
        if place.backend == "cuda":
            torch.cuda.set_device(0)
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def _all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x * 2


def _broadcast(x: Tensor) -> Tensor:
    made = x + 1
    dist.broadcast(made, 0)
    return made


def _gathered(x: Tensor) -> Tensor:
    made = torch.empty(4, 8, device=x.device)
    dist.all_gather_into_tensor(made, x * 2)
    return made


def _gathered_list(x: Tensor) -> Tensor:
    parts = [torch.empty(4, 8, device=x.device)]
    dist.all_gather(parts, x * 2)
    return torch.cat(parts)


def _scattered(x: Tensor) -> Tensor:
    made = torch.empty(4, 8, device=x.device)
    dist.reduce_scatter_tensor(made, x * 2)
    return made + 1


def _exchanged(x: Tensor) -> Tensor:
    made = torch.empty(4, 8, device=x.device)
    dist.all_to_all_single(made, x * 2)
    return made + 1


def _functional_reduce(x: Tensor) -> Any:
    from torch.distributed import _functional_collectives as functional

    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def _functional_gather(x: Tensor) -> Any:
    from torch.distributed import _functional_collectives as functional

    return functional.all_gather_tensor(x * 2, 0, dist.group.WORLD) + 1


def _functional_scatter(x: Tensor) -> Any:
    from torch.distributed import _functional_collectives as functional

    return functional.reduce_scatter_tensor(x * 2, "sum", 0, dist.group.WORLD) + 1


def _asynchronous(x: Tensor) -> Tensor:
    made = x * 2
    work = dist.all_reduce(made, async_op=True)
    other = x.sin()
    work.wait()
    return made + other


COLLECTIVES: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _gathered,
    "all_gather": _gathered_list,
    "reduce_scatter_tensor": _scattered,
    "all_to_all_single": _exchanged,
    "functional all_reduce": _functional_reduce,
    "functional all_gather": _functional_gather,
    "functional reduce_scatter": _functional_scatter,
    "all_reduce that is waited for": _asynchronous,
}


def _collective(fn: Callable[[Tensor], Any]) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        _group(place)
        x = place.randn(4, 8)
        return Case(fn, [x], [place.other(x)] * 2)

    return build


@wrong(
    "a Triton kernel takes a number of Python, which changes", backends=ONLY_CUDA, needs="triton"
)
def triton_number_is_frozen(place: Place) -> Case:
    from tests.specimens.graph_programs.correct import triton_kernels

    x, factor = place.randn(4, 8), [2.0]

    def more() -> None:
        factor[0] += 1

    return Case(lambda x: triton_kernels.scaled(x, factor[0]), [x], [place.other(x), more])


@right("a Triton kernel reads its factor on the device", backends=ONLY_CUDA, needs="triton")
def triton_number_on_the_device(place: Place) -> Case:
    from tests.specimens.graph_programs.correct import triton_kernels

    x, factor = place.randn(4, 8), place.randn(1)
    return Case(triton_kernels.scaled_by, [x, factor], [place.other(x), place.other(factor)])


@right("a Triton kernel adds to what its buffer holds", backends=ONLY_CUDA, needs="triton")
def triton_adds_in_place(place: Place) -> Case:
    from tests.specimens.graph_programs.correct import triton_kernels

    x, total = place.randn(4, 8), place.zeros(4, 8)
    return Case(lambda x: triton_kernels.added(x, total), [x], [place.other(x)] * 2)


PROGRAMS = (
    *(Program(f"draws {n}", line(f, rng=True), Verdict.RIGHT, "draws") for n, f in DRAWS.items()),
    *(
        Program(name, _collective(fn), Verdict.RIGHT, "a collective of one rank")
        for name, fn in COLLECTIVES.items()
    ),
    *programs_in(vars()),
)
