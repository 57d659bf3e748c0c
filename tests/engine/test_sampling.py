"""Tokens come as often as they should, from those that are allowed, and depend on nothing else.

The statistical tests compare counts with the exact distribution by a chi-square test. Each has a
false-alarm rate of 1e-6, and fixed seeds: it fails always or never.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sample_engine.sampling import (
    SamplingTensors,
    gumbel,
    noise_keys,
    probabilities,
    sample,
    seed_keys,
)
from tests.engine.support.chi_square import FALSE_ALARM_RATE, p_value
from tests.engine.support.rejection import accept_drafts

DRAWS = 40_000
INF = float("inf")


def how(count: int, first_position: int = 0, **values: Any) -> SamplingTensors:
    """Settings of ``count`` rows; each may be one value, or one for each row."""

    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(values.get(name, default), dtype=dtype).expand(count).clone()

    seeds = column("seed", 0, torch.int64)
    positions = torch.arange(first_position, first_position + count)
    if "position" in values:
        positions = column("position", 0, torch.int64)
    top_k, top_p = column("top_k", 0, torch.int64), column("top_p", 1.0, torch.float32)
    return SamplingTensors(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=top_k,
        top_p=top_p,
        keys=noise_keys(seed_keys(seeds), positions),
        filtered=bool(top_k.any() or (top_p < 1).any()),
    )


def counted(logits: torch.Tensor, count: int = DRAWS, **settings: Any) -> torch.Tensor:
    chosen = sample(logits.expand(count, -1), how(count, **settings))
    return torch.bincount(chosen, minlength=logits.shape[-1])


def some_logits(size: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def allowed(logits: list[float], temperature: float, top_k: int, top_p: float) -> set[int]:
    """By brute force: which tokens top-k and top-p leave."""
    order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
    if top_k:
        order = order[:top_k]
    weights = [math.exp((logits[index] - max(logits)) / temperature) for index in order]
    kept: list[int] = []
    before = 0.0
    for index, weight in zip(order, weights, strict=True):
        if kept and top_p < 1 and before >= top_p:
            break
        kept.append(index)
        before += weight / sum(weights)
    return set(kept)


# Greedy


@settings(deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20))
def test_greedy_is_the_first_of_the_largest(logits: list[float]) -> None:
    rows = torch.tensor([logits])
    assert sample(rows, None).tolist() == [logits.index(max(logits))]
    assert sample(rows, how(1, temperature=0.0)).tolist() == [logits.index(max(logits))]


def test_greedy_and_sampled_rows_may_be_mixed() -> None:
    logits = torch.stack([some_logits(50, seed) for seed in range(8)])
    chosen = sample(logits, how(8, temperature=[0.0, 1.0] * 4, top_k=[0, 0, 3, 3] * 2))
    assert chosen[::2].tolist() == logits.argmax(-1)[::2].tolist()
    for row in (1, 3, 5, 7):
        alone = sample(logits[row : row + 1], how(1, row, top_k=[0, 3][row // 2 % 2]))
        assert chosen[row] == alone


# Frequencies


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("size", [2, 7, 300])
def test_tokens_come_as_often_as_their_softmax_says(size: int, temperature: float) -> None:
    logits = some_logits(size)
    counts = counted(logits, DRAWS if size < 100 else 15_000, temperature=temperature)
    assert p_value(counts, (logits.double() / temperature).softmax(-1)) > FALSE_ALARM_RATE


def test_the_test_of_frequencies_notices_a_wrong_distribution() -> None:
    logits = some_logits(7)
    counts = counted(logits)
    wrong = (logits.double() * 1.06).softmax(-1)
    assert p_value(counts, wrong) < FALSE_ALARM_RATE


def test_seeds_of_one_position_are_as_random_as_positions_of_one_seed() -> None:
    logits = some_logits(7)
    counts = counted(logits, seed=list(range(DRAWS)), position=5)
    assert p_value(counts, logits.double().softmax(-1)) > FALSE_ALARM_RATE


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    logits = torch.zeros(4)
    probabilities = torch.full((16,), 1 / 16)
    chosen = sample(logits.expand(DRAWS, -1), how(DRAWS))
    pairs = chosen[::2] * 4 + chosen[1::2]
    assert p_value(torch.bincount(pairs, minlength=16), probabilities) > FALSE_ALARM_RATE
    other = sample(logits.expand(DRAWS, -1), how(DRAWS, seed=1))
    pairs = chosen * 4 + other
    assert p_value(torch.bincount(pairs, minlength=16), probabilities) > FALSE_ALARM_RATE


def test_top_k_and_top_p_leave_the_other_frequencies_in_proportion() -> None:
    logits = some_logits(30, scale=0.8)
    kept = sorted(allowed(logits.tolist(), 0.8, 9, 0.9))
    assert 2 < len(kept) < 9
    probabilities = torch.zeros(30, dtype=torch.float64)
    probabilities[kept] = (logits[kept].double() / 0.8).softmax(-1)
    counts = counted(logits, temperature=0.8, top_k=9, top_p=0.9)
    assert p_value(counts, probabilities) > FALSE_ALARM_RATE


def test_a_very_unlikely_token_comes_as_often_as_it_should() -> None:
    """Against one of probability almost 1: it wins if its noise is larger by the gap."""
    keys = noise_keys(seed_keys(torch.arange(100)), torch.zeros(100, dtype=torch.int64))
    noise = torch.cat([gumbel(key[None], torch.arange(100_000)) for key in keys])
    large, small = noise[:, ::2], noise[:, 1::2]  # 5e6 pairs
    for probability in (1e-3, 1e-5):
        gap = math.log((1 - probability) / probability)
        wins = int((large - small > gap).sum())
        expected = 5e6 * probability
        assert abs(wins - expected) < 5 * math.sqrt(expected)


# Which tokens are allowed


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 0.5, 2.0]), min_size=1, max_size=12),
    st.integers(0, 14),
    st.floats(0.01, 1.0),
    st.sampled_from([0.5, 1.0, 2.0]),
)
@example([0.0, 0.0, 0.0, 0.0], 2, 1.0, 1.0)
def test_exactly_the_tokens_that_top_k_and_top_p_leave_are_drawn(
    logits: list[float], top_k: int, top_p: float, temperature: float
) -> None:
    # A sum that is almost top_p may fall to either side: both are right then.
    least = allowed(logits, temperature, top_k, top_p - 1e-6)
    most = allowed(logits, temperature, top_k, min(1.0, top_p + 1e-6))
    counts = counted(torch.tensor(logits), 3000, temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = set(counts.nonzero().flatten().tolist())
    assert drawn <= most
    chances = torch.tensor([logits[index] / temperature for index in most]).softmax(-1)
    for index, chance in zip(most, chances.tolist(), strict=True):
        if index in least and chance > 0.01:  # not drawn in 3000: 8e-14
            assert index in drawn


def test_a_top_p_that_is_tiny_leaves_the_most_likely_token() -> None:
    logits = some_logits(20)
    counts = counted(logits, 500, top_p=1e-300)
    assert counts.argmax() == logits.argmax()
    assert counts.max() == 500


def test_a_top_k_beyond_the_vocabulary_leaves_everything() -> None:
    logits = some_logits(20)
    assert counted(logits, 500, top_k=1000).equal(counted(logits, 500))


def test_a_filter_of_one_row_does_not_change_another_row() -> None:
    logits = torch.stack([some_logits(20, seed) for seed in range(4)])
    plain = sample(logits, how(4))
    filtered = sample(logits, how(4, top_k=[0, 1, 0, 1], top_p=[1.0, 1.0, 1.0, 0.5]))
    assert plain[[0, 2]].equal(filtered[[0, 2]])


# Extremes


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = some_logits(100)
    counts = counted(logits, 200, temperature=temperature)
    assert counts[logits.argmax()] == 200


@pytest.mark.parametrize("temperature", [1e10, 3e38, INF])
def test_a_huge_temperature_makes_all_tokens_alike(temperature: float) -> None:
    logits = some_logits(8)
    counts = counted(logits, temperature=temperature)
    assert p_value(counts, torch.full((8,), 1 / 8)) > FALSE_ALARM_RATE


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.5}])
@pytest.mark.parametrize("temperature", [1e-38, 0.7, 3e38, INF])
@pytest.mark.parametrize(
    "logits",
    [[1e38, -1e38, 0.0], [-INF, 2.0, -INF], [-3e38, -3e38, -INF], [3e38, 3e38, 3e38]],
    ids=str,
)
def test_no_logits_are_too_extreme(
    logits: list[float], temperature: float, filters: dict[str, float]
) -> None:
    counts = counted(torch.tensor(logits), 300, temperature=temperature, **filters)
    possible = {index for index, value in enumerate(logits) if value > -INF}
    if temperature < 1e38:
        possible = {index for index in possible if logits[index] == max(logits)}
    assert set(counts.nonzero().flatten().tolist()) <= possible


# What the noise depends on


def test_a_row_does_not_depend_on_the_rows_around_it() -> None:
    logits = torch.stack([some_logits(40, seed) for seed in range(16)])
    same: dict[str, Any] = {"seed": 9, "top_k": 12, "temperature": 0.9}
    together = sample(logits, how(16, **same))
    backwards = sample(logits.flip(0), how(16, position=list(range(16))[::-1], **same))
    assert together.equal(backwards.flip(0))
    for row in range(16):
        assert sample(logits[row : row + 1], how(1, row, **same)) == together[row]


def test_the_noise_is_the_same_in_every_version() -> None:
    """Seeds are promises: who changes these numbers changes what users get for a seed."""
    key = noise_keys(seed_keys(torch.tensor([0, -1])), torch.tensor([0, 7]))
    assert [f"{value & (2**64 - 1):016x}" for value in key.tolist()] == EXPECTED_KEYS
    chosen = sample(torch.zeros(6, 1000), how(6, seed=[0, 0, 1, 1, 2**62, -5]))
    assert chosen.tolist() == EXPECTED_TOKENS


EXPECTED_KEYS = ["e220a8397b1dcdaf", "a0ce78dad669a735"]
EXPECTED_TOKENS = [592, 336, 139, 959, 736, 873]


def test_the_mix_is_splitmix64() -> None:
    """The first numbers of the generator with seed 1234567, as its authors' code prints them."""
    step = 0x9E3779B97F4A7C15
    seeds = [(1234567 + step * index + (1 << 63)) % (1 << 64) - (1 << 63) for index in range(3)]
    mixed = [value % (1 << 64) for value in seed_keys(torch.tensor(seeds)).tolist()]
    assert mixed == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_noise_of_different_positions_does_not_meet() -> None:
    """Positions a million apart and vocabularies of a million never use the same counter twice."""
    keys = noise_keys(torch.zeros(1, dtype=torch.int64), torch.tensor([1]))
    ratio = int(keys) * pow(0x9E3779B97F4A7C15, -1, 1 << 64) % (1 << 64)
    away = [value * ratio % (1 << 64) for value in range(1, 1 << 20)]
    assert min(min(value, (1 << 64) - value) for value in away) > 1 << 20


def unmix(mixed: int) -> int:
    """The number that SplitMix64's mix turns into this one, as a signed one."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        mixed ^= mixed >> shift ^ mixed >> 2 * shift
        mixed = mixed * pow(factor, -1, 1 << 64) % (1 << 64)
    return (mixed + (1 << 63)) % (1 << 64) - (1 << 63)


@pytest.mark.parametrize(
    ("bits", "noise"), [(0, 22.87), (0xFFFFFFFF, -2.81), (0xFFFFFFC0, -2.81), (1 << 31, 0.3665)]
)
def test_the_noise_of_any_bits_is_finite(bits: int, noise: float) -> None:
    key = torch.tensor([unmix(bits << 32)])
    assert gumbel(key, torch.tensor([0])).item() == pytest.approx(noise, abs=0.01)


# The distribution as such


@pytest.mark.parametrize("filters", [{}, {"top_k": 9, "top_p": 0.9}])
def test_probabilities_are_what_tokens_are_drawn_from(filters: dict[str, Any]) -> None:
    logits = some_logits(30, scale=0.8)
    spread = probabilities(logits[None], how(1, temperature=0.8, **filters))[0]
    assert float(spread.sum()) == pytest.approx(1, abs=1e-6)
    assert p_value(counted(logits, temperature=0.8, **filters), spread) > FALSE_ALARM_RATE
    for greedy in (None, how(1, temperature=0.0, **filters)):
        spread = probabilities(logits[None], greedy)[0]
        assert spread.equal(torch.nn.functional.one_hot(logits.argmax(), 30).float())


# Drafts


def test_drafts_count_up_to_the_first_wrong_one() -> None:
    assert accept_drafts([5, 6, 7], [5, 6]) == (5, 6, 7)
    assert accept_drafts([5, 6, 7], [5, 9]) == (5, 6)
    assert accept_drafts([5, 6, 7], [9, 6]) == (5,)
    assert accept_drafts([5], []) == (5,)


@pytest.mark.gpu
def test_the_gpu_draws_the_same_tokens() -> None:
    logits = torch.stack([some_logits(5000, seed) for seed in range(64)])
    logits = (logits * 4).round() / 4  # many are equal, as they are with bfloat16
    on_cpu = how(64, temperature=0.9, top_k=[0, 50] * 32, top_p=[1.0, 0.9, 0.8, 1.0] * 16)
    on_gpu = SamplingTensors(
        on_cpu.temperature.cuda(),
        on_cpu.top_k.cuda(),
        on_cpu.top_p.cuda(),
        noise_keys(
            seed_keys(torch.zeros(64, dtype=torch.int64, device="cuda")),
            torch.arange(64, device="cuda"),
        ),
        filtered=True,
    )
    assert on_gpu.keys.cpu().equal(on_cpu.keys)
    assert sample(logits.cuda(), on_gpu).cpu().equal(sample(logits, on_cpu))
