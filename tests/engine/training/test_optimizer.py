"""The optimizer: what it does to matrices, fused ones too, and to their size."""

from __future__ import annotations

import pytest
import torch

from tests.engine.support.model import random_llama
from tools.training.optimizer import Optimizer, OptimizerSettings, orthogonalized


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8), (1, 1, 5)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-3

    values = torch.linalg.svdvals(orthogonalized(matrices))

    assert 0.75 < float(values.min()) <= float(values.max()) < 1.25


def test_fused_projections_move_as_the_matrices_that_they_are() -> None:
    model = random_llama().requires_grad_(True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = Optimizer(model, OptimizerSettings(muon_rate=0.1, weight_decay=0.0))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)

    optimizer.step(0.5)

    moved = {name: before[name] - value for name, value in model.state_dict().items()}
    rows = {"self_attn.qkv_proj": [48, 16, 16], "mlp.gate_up_proj": [40, 40]}
    for name, cuts in rows.items():
        for part in moved[f"layers.1.{name}.weight"].split(cuts):
            scale = max(1, part.shape[0] / part.shape[1]) ** 0.5
            values = torch.linalg.svdvals(part) / (0.05 * scale)
            assert 0.75 < float(values.min()) <= float(values.max()) < 1.25
    assert all(bool(value.abs().sum() > 0) for value in moved.values())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_weight_decay_pulls_matrices_towards_zero() -> None:
    model = random_llama().requires_grad_(True)
    before = model.layers[0].mlp.down_proj.weight.detach().clone()
    norms = model.norm.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    Optimizer(model, OptimizerSettings(muon_rate=0.1, weight_decay=0.5)).step(1.0)

    torch.testing.assert_close(model.layers[0].mlp.down_proj.weight.detach(), before * 0.95)
    assert torch.equal(model.norm.weight.detach(), norms)
