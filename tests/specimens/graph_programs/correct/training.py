"""Gradients, steps of optimizers, and functions of torch.func in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

NEAR = {"rtol": 1e-3, "atol": 1e-5}


def _model(place: Place) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(place.device)


def _step_of(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        model, x = _model(place), place.randn(4, 8)
        optimizer = make(model.parameters())

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for _ in range(2):
            step(x)  # the state of the optimizer is made here
        return Case(step, [x], [place.other(x)] * 3, options=NEAR)

    return build


_OPTIM = torch.optim
STEPS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Verdict, tuple[str, ...]]] = {
    "SGD": (lambda p: _OPTIM.SGD(p, lr=0.1), Verdict.RIGHT, ("software", "cuda")),
    "SGD with momentum": (
        lambda p: _OPTIM.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        Verdict.RIGHT, ("software", "cuda"),
    ),
    "fused Adam": (
        lambda p: _OPTIM.Adam(p, lr=0.1, fused=True, capturable=True),
        Verdict.RIGHT, ("software", "cuda"),
    ),
    "fused AdamW with amsgrad": (
        lambda p: _OPTIM.AdamW(p, lr=0.1, fused=True, capturable=True, amsgrad=True),
        Verdict.RIGHT, ("software", "cuda"),
    ),
    "capturable Adam": (
        lambda p: _OPTIM.Adam(p, lr=0.1, capturable=True), Verdict.RIGHT, ONLY_CUDA,
    ),
    "capturable AdamW one by one": (
        lambda p: _OPTIM.AdamW(p, lr=0.1, capturable=True, foreach=False),
        Verdict.RIGHT, ONLY_CUDA,
    ),
    "capturable NAdam": (
        lambda p: _OPTIM.NAdam(p, lr=0.1, capturable=True), Verdict.RIGHT, ONLY_CUDA,
    ),
    "capturable RMSprop": (
        lambda p: _OPTIM.RMSprop(p, lr=0.1, capturable=True), Verdict.RIGHT, ONLY_CUDA,
    ),
    "capturable Adamax": (
        lambda p: _OPTIM.Adamax(p, lr=0.1, capturable=True), Verdict.RIGHT, ONLY_CUDA,
    ),
    "Adam": (lambda p: _OPTIM.Adam(p, lr=0.1), Verdict.REFUSED, ("software", "cuda")),
    "RMSprop": (lambda p: _OPTIM.RMSprop(p, lr=0.1), Verdict.REFUSED, ("software", "cuda")),
}  # fmt: skip


def _gradient(x: Tensor, w: Tensor) -> Any:
    w = w.detach().requires_grad_()
    return torch.autograd.grad((x @ w).tanh().sum(), w)


def _second_gradient(x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)


class _Clipped(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() <= 1)


def _own_function(x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(_Clipped.apply(x * 2).sum(), x)


def _checkpointed(x: Tensor, w: Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint

    w = w.detach().requires_grad_()
    out = checkpoint(
        lambda w: (x @ w).relu().square(), w, use_reentrant=False, preserve_rng_state=False
    )
    return torch.autograd.grad(out.sum(), w)


def _hooked(x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    x.register_hook(lambda grad: grad * 2)
    return torch.autograd.grad((x * 3).sum(), x)


def _accumulated(x: Tensor, w: Tensor) -> Tensor:
    w = w.detach().requires_grad_()
    for part in x.chunk(2):
        (part @ w).square().mean().backward()
    assert w.grad is not None
    nn.utils.clip_grad_norm_([w], 0.5)
    return w.grad


def _cast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return (x @ w).relu() @ w


def _forward_derivative(x: Tensor, y: Tensor, w: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, y)
        return tuple(torch.autograd.forward_ad.unpack_dual((dual @ w).tanh()))


_f = torch.func
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gradient": _gradient,
    "gradient of a gradient": _second_gradient,
    "function with its own backward": _own_function,
    "checkpoint": _checkpointed,
    "hook of a gradient": _hooked,
    "gradients add up and are clipped": _accumulated,
    "autocast": _cast,
    "func.grad": lambda x, w: _f.grad(lambda w: (x @ w).square().mean())(w),
    "func.grad_and_value": lambda x: _f.grad_and_value(lambda x: x.sin().sum())(x),
    "func.vjp": lambda x, y: _f.vjp(torch.tanh, x)[1](y),
    "func.jvp": lambda x, y: _f.jvp(torch.tanh, (x,), (y,)),
    "func.vmap": lambda x, w: _f.vmap(lambda row: row @ w)(x),
    "func.vmap of a gradient": lambda x, w: _f.vmap(
        _f.grad(lambda row, w: (row @ w).square().sum(), argnums=1), in_dims=(0, None)
    )(x, w),
    "func.jacrev": lambda v: _f.jacrev(lambda v: v.sin() * v)(v),
    "func.jacfwd": lambda v: _f.jacfwd(lambda v: v.sin() * v)(v),
    "func.hessian": lambda v: _f.hessian(lambda v: (v.sin() * v).sum())(v),
    "func.linearize": lambda v, x: _f.linearize(torch.sin, v)[1](x[0]),
    "func.jacfwd of jacfwd": lambda v: _f.jacfwd(_f.jacfwd(lambda v: (v.sin() * v).sum()))(v),
    "func.vmap of jvp": lambda x, y: _f.vmap(lambda a, b: _f.jvp(torch.sin, (a,), (b,)))(x, y),
    "forward derivative": _forward_derivative,
    "autograd.functional.hessian": lambda v: torch.autograd.functional.hessian(
        lambda v: (v**3).sum(), v
    ),
}


@right("an ensemble of models by vmap over their stacked parameters")
def ensemble(place: Place) -> Case:
    models = [_model(place) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base, x = copy.deepcopy(models[0]).to("meta"), place.randn(4, 8)

    def one(params: Any, buffers: Any, x: Tensor) -> Any:
        return torch.func.functional_call(base, (params, buffers), (x,))

    def fn(x: Tensor) -> Any:
        return torch.func.vmap(one, in_dims=(0, 0, None))(params, buffers, x).detach()

    return Case(fn, [x], [place.other(x)])


@right("an average of the weights moves with each step")
def moving_average(place: Place) -> Case:
    model = _model(place)
    averaged = copy.deepcopy(model)
    x = place.randn(4, 8)

    def fn(x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, other in zip(averaged.parameters(), model.parameters(), strict=True):
                other.add_(0.01)
                mine.lerp_(other, 0.1)
            out: Tensor = averaged(x)
        return out

    return Case(fn, [x], [place.other(x)] * 2, options=NEAR)


@refused("the scaler asks whether gradients were finite")
def gradient_scaler(place: Place) -> Case:
    model, x = _model(place), place.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(place.device, init_scale=2.0)

    def fn(x: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Case(fn, [x], [place.other(x)], options=NEAR)


@wrong("the learning rate is a number of the host, and a schedule changes it")
def schedule_of_a_number(place: Place) -> Case:
    model, x = _model(place), place.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def fn(x: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return model(x).detach()

    def slower() -> None:
        optimizer.param_groups[0]["lr"] = 0.01
        place.other(x)()

    return Case(fn, [x], [slower, slower], options=NEAR)


@right("the learning rate lies on the device, and a schedule fills it")
def schedule_of_a_tensor(place: Place) -> Case:
    model, x, rate = _model(place), place.randn(4, 8), place.tensor(0.5)

    def fn(x: Tensor, rate: Tensor) -> Tensor:
        grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        with torch.no_grad():
            for one, grad in zip(model.parameters(), grads, strict=True):
                one.sub_(grad * rate)
        return model(x).detach()

    return Case(fn, [x, rate], [lambda: rate.fill_(0.01), place.other(x)], options=NEAR)


@right("noise, a schedule on the device and a loss: one step of diffusion")
def step_of_diffusion(place: Place) -> Case:
    model, x, at = _model(place), place.randn(4, 8), place.tensor([0, 3, 5, 9])
    table = torch.linspace(1, 0, 10, device=place.device)

    def fn(x: Tensor, at: Tensor) -> Tensor:
        share = table[at][:, None]
        noisy = share * x + (1 - share) * torch.ones_like(x)
        return F.mse_loss(model(noisy), x[:, :1]).detach()

    return Case(fn, [x, at], [place.other(x, at)], options=NEAR)


PROGRAMS = (
    *(
        Program(f"step of {name}", _step_of(make), verdict, "a step of training", backends=where)
        for name, (make, verdict, where) in STEPS.items()
    ),
    *(
        Program(
            name,
            line(fn, **NEAR),
            Verdict.RIGHT,
            "gradients",
            documented={"software": "it traces within the capture"} if "linearize" in name else {},
        )
        for name, fn in FUNCTIONS.items()
    ),
    *programs_in(vars()),
)
