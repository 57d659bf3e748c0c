"""Layers and losses of torch.nn, in evaluation and in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.specimens.graph_programs.program import Case, Place, Program, Verdict

__all__ = ["PROGRAMS"]

Inputs = Callable[[Place], list[torch.Tensor]]


def _floats(*shapes: tuple[int, ...]) -> Inputs:
    return lambda p: [p.randn(*shape) for shape in shapes]


def _with_ints(shape: tuple[int, ...], high: int, *sizes: int) -> Inputs:
    return lambda p: [p.randn(*shape), p.ints(0, high, *sizes)]


ROWS, VOLUME = _floats((4, 8)), _floats((2, 4, 4, 4, 4))
TWO = _floats((4, 8), (4, 8))
IMAGE, SIGNAL, STEPS = _floats((2, 4, 8, 8)), _floats((2, 4, 16)), _floats((2, 5, 8))
CLASSES = _with_ints((4, 8), 8, 4)
BIG = _floats((4, 16, 64, 64))  # 262,144 elements


def _signs(p: Place) -> list[torch.Tensor]:
    return [p.randn(4, 8), p.ints(0, 2, 4, 8) * 2 - 1]


def _sign_rows(p: Place) -> list[torch.Tensor]:
    return [p.randn(4, 8), p.randn(4, 8), p.ints(0, 2, 4) * 2 - 1]


def _bags(p: Place) -> list[torch.Tensor]:
    return [p.ints(0, 50, 12), p.tensor([0, 3, 7, 9])]


def _large_bags(p: Place) -> list[torch.Tensor]:
    return [p.ints(0, 2048, 64, 8)]


EVAL: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "Linear": (lambda: nn.Linear(8, 6), ROWS),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), TWO),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3), SIGNAL),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), IMAGE),
    "Conv2d of groups": (lambda: nn.Conv2d(4, 8, 3, groups=4, dilation=2), IMAGE),
    "Conv3d": (lambda: nn.Conv3d(4, 2, 2), VOLUME),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 2, 3, stride=2), SIGNAL),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 2, 3), IMAGE),
    "Unfold": (lambda: nn.Unfold(3), IMAGE),
    "Fold": (lambda: nn.Fold((4, 4), 2), _floats((2, 16, 9))),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), SIGNAL),
    "MaxPool2d": (lambda: nn.MaxPool2d(2, return_indices=True), IMAGE),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), VOLUME),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), IMAGE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(3), IMAGE),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(3), IMAGE),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(2), IMAGE),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d(2), IMAGE),
    "CircularPad2d": (lambda: nn.CircularPad2d(2), IMAGE),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(2), IMAGE),
    "ELU": (nn.ELU, ROWS),
    "GELU": (lambda: nn.GELU(approximate="tanh"), ROWS),
    "Hardshrink": (nn.Hardshrink, ROWS),
    "Hardswish in place": (lambda: nn.Sequential(nn.Tanh(), nn.Hardswish(inplace=True)), ROWS),
    "LogSigmoid": (nn.LogSigmoid, ROWS),
    "Mish": (nn.Mish, ROWS),
    "PReLU": (lambda: nn.PReLU(8), ROWS),
    "RReLU": (nn.RReLU, ROWS),
    "SiLU": (nn.SiLU, ROWS),
    "Softplus": (nn.Softplus, ROWS),
    "Threshold": (lambda: nn.Threshold(0.1, 20.0), ROWS),
    "GLU": (nn.GLU, ROWS),
    "Softmax": (lambda: nn.Softmax(-1), ROWS),
    "Dropout that does nothing": (lambda: nn.Dropout(0.5), ROWS),
    "Identity": (nn.Identity, ROWS),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), ROWS),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), VOLUME),
    "BatchNorm2d of a large image": (lambda: nn.BatchNorm2d(16), BIG),
    "Conv2d and BatchNorm2d of a large image": (
        lambda: nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        BIG,
    ),
    "BatchNorm2d without statistics": (
        lambda: nn.BatchNorm2d(16, track_running_stats=False), BIG,
    ),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4), SIGNAL),
    "InstanceNorm2d with statistics": (
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE,
    ),
    "InstanceNorm2d of a large image": (lambda: nn.InstanceNorm2d(16, affine=True), BIG),
    "InstanceNorm2d with statistics of a large image": (
        lambda: nn.InstanceNorm2d(16, track_running_stats=True), BIG,
    ),
    "GroupNorm of a large image": (lambda: nn.GroupNorm(4, 16), BIG),
    "LayerNorm": (lambda: nn.LayerNorm(8), ROWS),
    "LayerNorm of many rows": (lambda: nn.LayerNorm(64), _floats((2048, 64))),
    "RMSNorm": (lambda: nn.RMSNorm(8), ROWS),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), IMAGE),
    "Embedding": (lambda: nn.Embedding(50, 8, padding_idx=0), lambda p: [p.ints(0, 50, 4, 3)]),
    "EmbeddingBag of means": (lambda: nn.EmbeddingBag(50, 8), _bags),
    "EmbeddingBag of sums": (lambda: nn.EmbeddingBag(50, 8, mode="sum"), _bags),
    "EmbeddingBag of maxima": (lambda: nn.EmbeddingBag(50, 8, mode="max"), _bags),
    "EmbeddingBag of a large table": (lambda: nn.EmbeddingBag(2048, 64), _large_bags),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(), TWO),
    "PairwiseDistance": (lambda: nn.PairwiseDistance(), TWO),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "Upsample bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "Upsample bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    "RNN": (lambda: nn.RNN(8, 6, batch_first=True), STEPS),
    "LSTM of two layers": (lambda: nn.LSTM(8, 6, 2, batch_first=True), STEPS),
    "LSTM both ways": (lambda: nn.LSTM(8, 6, bidirectional=True), STEPS),
    "GRU": (lambda: nn.GRU(8, 6), STEPS),
    "LSTMCell": (lambda: nn.LSTMCell(8, 6), ROWS),
    "GRUCell": (lambda: nn.GRUCell(8, 6), ROWS),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), STEPS,
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16), _floats((5, 2, 8), (4, 2, 8)),
    ),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16), _floats((5, 2, 8), (4, 2, 8)),
    ),
    "a block of a residual network": (
        lambda: nn.Sequential(
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        ),
        BIG,
    ),
}  # fmt: skip

LOSSES: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "L1Loss": (nn.L1Loss, TWO),
    "MSELoss": (nn.MSELoss, TWO),
    "HuberLoss": (nn.HuberLoss, TWO),
    "SmoothL1Loss": (nn.SmoothL1Loss, TWO),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES),
    "NLLLoss": (lambda: nn.NLLLoss(ignore_index=0), CLASSES),
    "PoissonNLLLoss": (nn.PoissonNLLLoss, TWO),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), TWO),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, TWO),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, _signs),
    "SoftMarginLoss": (nn.SoftMarginLoss, _signs),
    "MarginRankingLoss": (nn.MarginRankingLoss, lambda p: [p.randn(4), p.randn(4), p.randn(4)]),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, _sign_rows),
    "MultiMarginLoss": (nn.MultiMarginLoss, CLASSES),
    "TripletMarginLoss": (nn.TripletMarginLoss, _floats((4, 8), (4, 8), (4, 8))),
}

TRAINED: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "Linear": (lambda: nn.Linear(8, 6), ROWS),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), IMAGE),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "BatchNorm2d of a large image": (lambda: nn.BatchNorm2d(16), BIG),
    "LayerNorm": (lambda: nn.LayerNorm(8), ROWS),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "Embedding": (lambda: nn.Embedding(50, 8), lambda p: [p.ints(0, 50, 4, 3)]),
    "GRU": (lambda: nn.GRU(8, 6), STEPS),
}  # fmt: skip


def _evaluated(make: Callable[[], nn.Module], inputs: Inputs) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        module, given = make().to(place.device).eval(), inputs(place)

        def fn(*args: torch.Tensor) -> Any:
            with torch.no_grad():
                return module(*args)

        # Losses that take a probability or a sign keep their second input.
        floats = [one for one in given if one.is_floating_point() or one.numel() > 4]
        return Case(fn, given, [place.other(*floats), place.other(given[0])])

    return build


def _trained(make: Callable[[], nn.Module], inputs: Inputs) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        module, given = make().to(place.device).train(), inputs(place)

        def fn(*args: torch.Tensor) -> list[Any]:
            out = module(*args)
            loss = (out[0] if isinstance(out, tuple) else out).square().mean()
            grads = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
            return [loss.detach(), *grads]

        near = {"rtol": 1e-3, "atol": 1e-5}
        return Case(fn, given, [place.other(*given), place.other(given[0])], options=near)

    return build


PROGRAMS = (
    *(
        Program(name, _evaluated(*row), Verdict.RIGHT, "a layer of torch.nn in evaluation")
        for name, row in EVAL.items()
    ),
    *(Program(name, _evaluated(*row), Verdict.RIGHT, "a loss") for name, row in LOSSES.items()),
    *(
        Program(f"{name} in training", _trained(*row), Verdict.RIGHT, "forward and gradients")
        for name, row in TRAINED.items()
    ),
)
