"""Scaled angles, and heads of which RoPE turns a part."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from sample_engine.model import ops
from sample_engine.model.config import RopeScaling
from sample_engine.model.rope import RopeAngles, angles_of, scaled_rates
from sample_engine.model.rope_settings import read_rope
from tests.engine.support.model import SMALL

RATES = 10000.0 ** (-torch.arange(0, 64, 2) / 64)


def test_linear_slows_all_down() -> None:
    scaling = RopeScaling(kind="linear", factor=4.0)
    assert torch.equal(scaled_rates(RATES, 64, 10000.0, scaling), RATES / 4)


EXTREMES = (1e-300, 1e-38, 1e-5, 0.5, 1, 4.0, 64, 1e5, 1e38, 1.7e308, 2**63, 10**300)
MAY_HAVE = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
}


@pytest.mark.parametrize("kind", MAY_HAVE)
def test_settings_of_any_size_are_refused_or_make_angles(kind: str) -> None:
    chance, made = random.Random(kind), 0
    for _ in range(400):
        settings: dict[str, Any] = {
            name: chance.choice(EXTREMES) for name in ("rope_theta", *MAY_HAVE[kind])
        }
        rope, wrong = read_rope({"rope_parameters": {"rope_type": kind, **settings}})
        assert bool(wrong) == (rope is None)
        if rope is None:
            continue
        made += 1
        config = dataclasses.replace(SMALL, rope_theta=rope.theta, rope_scaling=rope.scaling)
        for each in angles_of(torch.arange(128), config):
            assert bool(torch.isfinite(each).all()), settings
    assert made


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_fast_turns_stay_and_slow_ones_are_slowed_down(kind: str) -> None:
    scaling = RopeScaling(kind=kind, factor=4.0, original_max_position_embeddings=512)
    found = scaled_rates(RATES, 64, 10000.0, scaling) / RATES
    assert float(found[0]) == 1.0
    assert float(found[-1]) == pytest.approx(0.25)
    assert bool((found.diff() <= 0).all())
    assert bool(((found > 0.26) & (found < 0.99)).any())


def test_yarn_makes_cosine_and_sine_larger() -> None:
    scaling = RopeScaling(
        kind="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.5
    )
    positions = torch.arange(5)
    cos, sin = angles_of(positions, dataclasses.replace(SMALL, rope_scaling=scaling))
    assert torch.allclose(cos.square() + sin.square(), torch.full_like(cos, 2.25))
    assert cos.shape == (5, 1, SMALL.head_dim // 2)


def test_a_part_of_each_head_is_turned_as_a_smaller_head() -> None:
    config = dataclasses.replace(SMALL, rotary_dim=4)
    cos, sin = angles_of(torch.arange(7), config)
    assert cos.shape == (7, 1, 2)
    q, k = torch.randn(7, 3, 8), torch.randn(7, 1, 8)
    for whole, turned in zip((q, k), ops.rotate(q, k, cos, sin), strict=True):
        assert torch.equal(turned[..., 4:], whole[..., 4:])
        small, _ = ops.rotate(whole[..., :4], whole[..., :4], cos, sin)
        assert torch.equal(turned[..., :4], small)
        assert not torch.equal(turned[1:, :, :4], whole[1:, :, :4])


def test_an_unknown_scaling_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError, match="'longrope'"):
        scaled_rates(RATES, 64, 10000.0, RopeScaling(kind="longrope", factor=2.0))


def test_a_table_holds_the_same_angles() -> None:
    angles, positions = RopeAngles(SMALL), torch.tensor([3, 0, 99, 3])
    expected = angles_of(positions, SMALL)
    for with_table in (False, True):
        if with_table:
            angles.tabulate(100, torch.device("cpu"))
        with torch.inference_mode():
            for found, right in zip(angles(positions), expected, strict=True):
                torch.testing.assert_close(found, right, rtol=0, atol=1e-6)
    with torch.inference_mode(), pytest.raises(IndexError):
        angles(torch.tensor([100]))  # it is read, and ends where it was told to
    angles(torch.tensor([100]))  # where gradients are wanted it is not


def test_no_table_is_made_that_takes_much_memory() -> None:
    angles = RopeAngles(SMALL)
    angles.tabulate(1 << 40, torch.device("cpu"))
    with torch.inference_mode():
        assert angles(torch.tensor([5]))[0].shape[0] == 1
