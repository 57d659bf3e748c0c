"""Calls that no capture takes, and their neighbours that it takes, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.specimens.graph_programs.program import (
    Case,
    Place,
    Program,
    Verdict,
    line,
    refused,
    right,
)
from tests.support.torch import capturable_by_now

__all__ = ["PROGRAMS"]


def _symmetric(square: Tensor) -> Tensor:
    return square @ square.T + 6 * torch.eye(6, device=square.device)


def _branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def _loop(x: Tensor, n: Tensor) -> Tensor:
    for _ in range(int(n)):
        x = x.sin()
    return x


def _where_a_device_is_set(x: Tensor) -> Tensor:
    with torch.device(x.device):
        return x + torch.tensor(2.0)


def _array() -> Any:
    import numpy

    return numpy.array([0, 2])


def _printed(x: Tensor) -> Tensor:
    str(x)
    return x + 1


def _asserted(x: Tensor) -> Tensor:
    assert torch.isfinite(x).all()
    return x + 1


def _sized(x: Tensor, n: Tensor) -> Tensor:
    return x[:n] * 2


def _sorted_on_the_host(k: Tensor) -> Tensor:
    return torch.stack([k[place] for place in sorted(range(4), key=lambda at: k[at].item())])


REFUSED: dict[str, Callable[..., Any]] = {
    "item": lambda x: x * x.sum().item(),
    "float of a sum": lambda x: x / float(x.abs().max()),
    "if on a tensor": _branch,
    "loop to a tensor": _loop,
    "slice to a tensor": _sized,
    "assert on a tensor": _asserted,
    "tolist": lambda k, x: x[k.tolist()],
    "to the host": lambda x: x.cpu() + 1,
    "printed": _printed,
    "sort with a key on the host": _sorted_on_the_host,
    "nonzero": lambda x, m: x[m.nonzero()[:, 0]],
    "where with one argument": lambda m: torch.where(m)[0],
    "mask is read": lambda x, m: x[m].sum(),
    "mask takes a tensor": lambda x, y, m: (x.__setitem__(m, y[m]), x)[1],
    "masked_select": lambda x, m: x.masked_select(m).sum(),
    "unique": lambda k: k.unique(),
    "unique_consecutive": lambda k: k.unique_consecutive(),
    "bincount": lambda k: torch.bincount(k, minlength=5),
    "repeat_interleave": lambda x, k: x.repeat_interleave(k, 0).sum(0),
    "one_hot without classes": lambda k: F.one_hot(k),
    "equal": lambda x, y: x + torch.equal(x, y),
    "allclose": lambda x, y: x + torch.allclose(x, y),
    "histogram without a range": lambda x: torch.histc(x, 8),
    "tensor of a list": lambda x: x + torch.tensor([1.0] * 8, device=x.device),
    "tensor of a number on the device": lambda x: x + torch.tensor(0.0, device=x.device),
    "as_tensor of a number on the device": lambda x: x * torch.as_tensor(2.0, device=x.device),
    "new_tensor of a number": lambda x: x + x.new_tensor(1.0),
    "index by a list": lambda x: x[[0, 2, 1]] * 2,
    "column by a list": lambda x: x[:, [0, 5]] * 2,
    "assignment by a list": lambda x: (x.__setitem__([0, 2], 1.0), x * 2)[1],
    "mask as a list": lambda x: x[[True, False, True, False]] * 2,
    "eigh": lambda square: torch.linalg.eigh(_symmetric(square)).eigenvalues,
    "eigvalsh": lambda square: torch.linalg.eigvalsh(_symmetric(square)),
    "svd": lambda square: torch.linalg.svd(square).S,
    "svdvals": lambda square: torch.linalg.svdvals(square),
    "pinv": lambda square: torch.linalg.pinv(square),
    "matrix_rank": lambda square: torch.linalg.matrix_rank(square),
    "cholesky": lambda square: torch.linalg.cholesky(_symmetric(square)),
    "inverse": lambda square: torch.linalg.inv(_symmetric(square)),
    "solve": lambda square: torch.linalg.solve(_symmetric(square), square),
    "normal of tensors": lambda x, y: torch.normal(x, y.abs()),
    "combinations": lambda v: torch.combinations(v),
    "number to the type and place of another": lambda x: x + torch.tensor(2.0).to(x),
    "number as another's type": lambda x: x + torch.tensor(2.0).type_as(x),
    "number assigned to one element": lambda x: (x.__setitem__((0, 0), 1.0), x * 2)[1],
    "number assigned to an element of a row": lambda v: (v.__setitem__(3, 1.0), v * 2)[1],
    "number of the host in where": lambda x, m: torch.where(m, x, torch.tensor(0.0)),
    "number copied in": lambda x: x.copy_(torch.tensor(1.0)) * 2,
    "number made where a device is set": _where_a_device_is_set,
    "asarray of a number on the device": lambda x: x + torch.asarray(2.0, device=x.device),
    "tensor of a range": lambda x: x + torch.tensor(range(8), device=x.device),
    "stacked on the host": lambda x: x[:2] + torch.stack([torch.tensor(1.0)] * 8).to(x.device),
    "rows and columns by lists": lambda x: x[[0, 1], [2, 3]] * 2,
    "index by an array": lambda x: x[_array()] * 2,
    "ends of a range on the device": lambda s: torch.linspace(s, s + 1, 4, device=s.device),
    "distribution that checks": lambda x: torch.distributions.Categorical(
        logits=x, validate_args=True
    ).sample(),
    "sparse": lambda x: x.to_sparse().to_dense() * 2,
    "matrix that must be invertible": lambda square: torch.linalg.matrix_power(square, -1),
    "nuclear norm": lambda square: torch.linalg.matrix_norm(square, "nuc"),
    "condition": lambda square: torch.linalg.cond(square),
    "eigenvalues of any matrix": lambda square: torch.linalg.eigvals(square).abs(),
    "least squares": lambda square: torch.linalg.lstsq(square, square).solution,
    "Gaussian loss that looks at its variance": lambda x, y: F.gaussian_nll_loss(x, y, y * y),
}

DOCUMENTED = {"sparse": "the software graph judges dense tensors only"}

RIGHT: dict[str, Callable[..., Any]] = {
    "branch by where": lambda x: torch.where(x.sum() > 0, x * 2, x * 3),
    "host number from a list's length": lambda x: x * len([1, 2, 3]),
    "index by a range": lambda x: x[torch.arange(3, device=x.device)],
    "slices instead of a list": lambda x: torch.stack([x[0], x[2], x[1]]),
    "assert on the device": lambda x: (torch._assert_async(torch.isfinite(x).all()), x + 1)[1],
    "shape is read": lambda x: x.reshape(x.shape[0] * x.shape[1], -1) * x.numel(),
    "asks whether it is captured": lambda x: x + 0 * len(str(x.shape)),
    "number on the host beside the device": lambda x: x + torch.tensor(2.0),
    "scalar_tensor": lambda x: x + torch.full((), 2.0, device=x.device),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2) * 0 + x[:, :2].long(),
    "multinomial of one": lambda x: torch.multinomial(x.softmax(-1), 1) * 0 + x[:, :1].long(),
    "determinant": lambda square: torch.linalg.det(square),
    "embedding with a greatest norm": lambda k, cache: F.embedding(k, cache, max_norm=1.0),
    "quantiles of the device": lambda x, s: x.quantile(s.sigmoid()),
    "several quantiles of the device": lambda x, v: x.quantile(v[:3].sigmoid(), -1),
    "number filled in": lambda x: x.fill_(torch.tensor(1.0)) * 2,
    "number assigned": lambda x: (x.__setitem__(0, torch.tensor(1.0)), x * 2)[1],
    "scalar_tensor on the device": lambda x: x + torch.scalar_tensor(2.0, device=x.device),
    "multinomial with replacement": lambda x: torch.multinomial(
        x.softmax(-1), 3, replacement=True
    ).clamp(max=0),
    "distribution without a check": lambda x: (
        torch.distributions.Categorical(logits=x, validate_args=False).sample() * 0
    ),
    "new_full, eye, tri": lambda x: x.new_full((4, 8), 2.0) + torch.eye(4, 8, device=x.device),
    "is one of": lambda k: torch.isin(k, k[:2]),
    "norm of a matrix": lambda square: torch.linalg.matrix_norm(square, "fro"),
    "LU, and its parts": lambda square: torch.linalg.lu(square),
    "solved by a factor": lambda square: torch.linalg.lu_solve(
        *torch.linalg.lu_factor_ex(_symmetric(square))[:2], square
    ),
    "Cholesky of a product, solved": lambda square: torch.cholesky_solve(
        square, torch.linalg.cholesky_ex(_symmetric(square)).L
    ),
    "QR": lambda square: torch.linalg.qr(square).R.abs(),
    "matrix power": lambda square: torch.linalg.matrix_power(square, 3),
    "matrix exponential of a small matrix": lambda square: square.tanh() @ square,
}
RIGHT.update({name: REFUSED.pop(name) for name in capturable_by_now()})


@right("the current stream is asked for, as libraries do for their launches")
def current_stream_is_asked(place: Place) -> Case:
    def fn(x: Tensor) -> Tensor:
        stream = torch.cuda.current_stream() if place.backend == "cuda" else None
        stream = torch.accelerator.current_stream() if place.backend != "cuda" else stream
        assert stream is not None
        return x * 2

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


@right("the generator is seeded with the seed that it has")
def seeded_with_the_same_seed(place: Place) -> Case:
    def fn(x: Tensor) -> Tensor:
        torch.manual_seed(torch.initial_seed())
        return x * 2

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


@refused("the generator is seeded with another seed")
def seeded_with_another_seed(place: Place) -> Case:
    seeds = iter(range(100, 10_000))

    def fn(x: Tensor) -> Tensor:
        torch.manual_seed(next(seeds))
        return x + torch.rand_like(x)

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


@refused("it waits for the device")
def waits_for_the_device(place: Place) -> Case:
    def fn(x: Tensor) -> Tensor:
        made = x * 2
        torch.cuda.synchronize()
        return made + 1

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


@refused("an array of NumPy comes in")
def array_comes_in(place: Place) -> Case:
    import numpy

    table = numpy.arange(8, dtype=numpy.float32)

    def fn(x: Tensor) -> Tensor:
        return x + torch.from_numpy(table).to(x.device)

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


@refused("results go to NumPy for a step on the host")
def through_numpy(place: Place) -> Case:
    def fn(x: Tensor) -> Tensor:
        kept = x.cpu().numpy().argsort(-1)
        return x + torch.as_tensor(kept, device=x.device)

    x = place.randn(4, 8)
    return Case(fn, [x], [place.other(x)])


@refused("a mask as transformers makes it: a number goes to the device for each call")
def mask_with_a_number_on_the_device(place: Place) -> Case:
    def fn(x: Tensor, m: Tensor) -> Tensor:
        lowest = torch.tensor(torch.finfo(x.dtype).min, device=x.device, dtype=x.dtype)
        return torch.where(m, torch.tensor(0.0, device=x.device), lowest).softmax(-1) + x

    x, m = place.randn(4, 8), place.randn(4, 8) > 0
    return Case(fn, [x, m], [place.other(x), place.other(m)])


PROGRAMS = (
    *(
        Program(
            name,
            line(fn),
            Verdict.REFUSED,
            "needs the host",
            documented={"software": DOCUMENTED[name]} if name in DOCUMENTED else {},
        )
        for name, fn in REFUSED.items()
    ),
    *(Program(n, line(f), Verdict.RIGHT, "the host knows all it needs") for n, f in RIGHT.items()),
    current_stream_is_asked,
    seeded_with_the_same_seed,
    seeded_with_another_seed,
    waits_for_the_device,
    array_comes_in,
    through_numpy,
    mask_with_a_number_on_the_device,
)
