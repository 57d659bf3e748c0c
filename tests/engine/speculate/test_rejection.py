"""Text with drafts is distributed as without, or is the same; and nothing waits for the device.

The statistical tests compare counts with the exact distribution by a chi-square test. Each has a
false-alarm rate of 1e-6, and fixed seeds: it fails always or never.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from sample_engine.batch.draft_tensors import RequestSampling
from sample_engine.config import REJECTION_METHODS
from sample_engine.sampling import probabilities, sample
from sample_engine.speculate import rejection
from sample_engine.speculate.rejection import verify
from tests.engine.support.chi_square import FALSE_ALARM_RATE, p_value
from tests.engine.support.rejection import Writers, at, sampling_of, some_table, unverified_of

SIZE = 8  # tokens of the vocabulary
DRAFTS = 3
SEEDS = 20_000


def chain_of(table: torch.Tensor, **values: Any) -> torch.Tensor:
    """The probability of each token, for each row of logits."""
    one = sampling_of(list(range(len(table))), **values)
    return probabilities(table, at(one, torch.zeros(len(table), dtype=torch.int64))).double()


# Two tokens, exactly


def rejected_and_thresholds(
    logits: torch.Tensor,  # [R, V]
    how: RequestSampling,
    draft: int,
    q: torch.Tensor | None,  # [R, V]
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For one draft of each request: the token in place of it, and how often it is accepted.

    A draft is accepted where a number between 0 and 1 is below a threshold. It is found to 2**-50
    by bisection; that there is only one is checked on a grid.
    """
    count, size = logits.shape
    probs = None if q is None else q[:, None]
    rows = logits.repeat_interleave(2, 0)
    one = torch.ones(count, dtype=torch.int64)
    drafts = unverified_of(torch.full((count, 1), draft), one, probs=probs)

    def accepted(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        monkeypatch.setattr(rejection, "uniform", lambda keys: numbers.repeat_interleave(2))
        verdict = verify(rows, how, drafts)
        return verdict.num_sampled == 2, verdict.token_ids[:, 0]

    low, high = torch.zeros(count).double(), torch.ones(count).double()
    for _ in range(50):
        middle = (low + high) / 2
        yes, _tokens = accepted(middle)
        low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
    for number in torch.arange(0, 1, 1 / 64).double():
        yes, tokens = accepted(number.expand(count))
        clear = (number - high).abs() > 1e-9
        assert yes[clear].equal((number < high)[clear])
        assert (tokens[yes] == draft).all()
    _, tokens = accepted(torch.ones(count).double())  # larger than any: rejected if it can be
    assert size == 2
    return tokens, high


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}], ids=["plain", "top_p"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_with_two_tokens_the_distribution_is_exact(
    one_hot: bool, filters: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All drafts, and all numbers that decide whether they are accepted: P(token) is p(token)."""
    rng = torch.Generator().manual_seed(0)
    model, drafter = (torch.randn(300, 2, generator=rng) * 3 for _ in range(2))
    drafter[:20] = model[:20]  # p == q
    drafter[20:40, 0] = -200.0  # q is 0
    model[40:60, 1] = -200.0  # p is 0
    how = sampling_of(list(range(300)), temperature=0.8, **filters)
    p = chain_of(model, temperature=0.8, **filters)
    q = chain_of(drafter).float()
    chance = torch.zeros(300, 2, dtype=torch.float64)
    for draft in (0, 1):
        instead, accepted = rejected_and_thresholds(
            model, how, draft, None if one_hot else q, monkeypatch
        )
        weight = torch.full((300,), 0.5).double() if one_hot else q[:, draft].double()
        own = torch.zeros(300, 2, dtype=torch.float64)
        own[:, draft] = accepted
        own.scatter_add_(1, instead[:, None], (1 - accepted)[:, None])
        if one_hot:  # then each draft for itself gives p
            assert (own - p).abs().max() < 1e-6
        chance += weight[:, None] * own
    assert (chance - p).abs().max() < 1e-6


# Frequencies


def writers(num_drafts: int | None = DRAFTS, draws: bool = True, **values: Any) -> Writers:
    """Requests of many seeds. ``num_drafts`` None: another number of drafts for each."""
    counts = torch.arange(SEEDS) % (DRAFTS + 1)
    if num_drafts is not None:
        counts = torch.full((SEEDS,), num_drafts)
    sampling = sampling_of(torch.arange(SEEDS), **values)
    return Writers(some_table(SIZE, 0), some_table(SIZE, 1), sampling, counts, draws)


def least_p_value(written: Writers, **values: Any) -> float:
    """Of the first token, of the first two together, and of each later one given that before."""
    chain, texts = chain_of(written.model, **values), written.write(4)
    first = chain[0]
    found = [p_value(torch.bincount(texts[:, 0], minlength=SIZE), first)]
    for place in range(3):
        pairs = torch.bincount(texts[:, place] * SIZE + texts[:, place + 1], minlength=SIZE**2)
        found.append(p_value(pairs, (first[:, None] * chain).flatten()))
        first = first @ chain
    return min(found)


SETTINGS: dict[str, dict[str, float]] = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8, "temperature": 1.3},
    "both": {"top_k": 5, "top_p": 0.7},
}


@pytest.mark.parametrize("draws", [True, False], ids=["drawn", "one-hot"])
@pytest.mark.parametrize("values", SETTINGS.values(), ids=SETTINGS)
def test_tokens_and_pairs_of_tokens_come_as_often_as_without_drafts(
    values: dict[str, Any], draws: bool
) -> None:
    # Four tests each: the false-alarm rate of one is a fourth.
    assert least_p_value(writers(draws=draws, **values), **values) > FALSE_ALARM_RATE / 4


@pytest.mark.parametrize("num_drafts", [None, 0, 1])
def test_they_do_with_any_number_of_drafts(num_drafts: int | None) -> None:
    assert least_p_value(writers(num_drafts)) > FALSE_ALARM_RATE / 4


def test_they_do_where_the_drafter_draws_from_another_distribution_than_is_asked_for() -> None:
    """Its own top-k excludes what the model allows: q is 0 there."""
    written = writers(temperature=0.9)
    written.drafter = written.drafter.masked_fill(torch.eye(SIZE).bool(), float("-inf"))
    assert least_p_value(written, temperature=0.9) > FALSE_ALARM_RATE / 4


def test_the_drafts_of_a_perfect_drafter_are_all_accepted() -> None:
    table = some_table(SIZE, 0)
    sampling = sampling_of(torch.arange(SEEDS), top_p=0.9)
    chain = chain_of(table, top_p=0.9).float()
    positions = torch.zeros(SEEDS, dtype=torch.int64)
    draft = sample(table[:1].expand(SEEDS, -1), at(sampling, positions))[:, None]
    rows = torch.stack([table[0].expand(SEEDS, -1), table[draft[:, 0]]], 1).flatten(0, 1)
    probs = chain[:1].expand(SEEDS, 1, -1)
    drafts = unverified_of(draft, torch.ones(SEEDS, dtype=torch.int64), positions, probs)
    assert (verify(rows, sampling, drafts).num_sampled == 2).all()


@cache
def p_value_of_the_right_one() -> float:
    return least_p_value(writers())


def _always_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "uniform", lambda keys: torch.zeros(len(keys)).double())


def _replaces_from_all_of_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "_residual", lambda values, p, q, drafted: values)


def _has_one_noise_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "purpose_keys", lambda keys, purpose: keys)


def _replaces_as_if_drafts_were_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rejection._residual
    monkeypatch.setattr(
        rejection, "_residual", lambda values, p, q, drafted: right(values, p, None, drafted)
    )


@pytest.mark.parametrize(
    "break_it",
    [
        _always_accepts,
        _replaces_from_all_of_p,
        _has_one_noise_for_all,
        _replaces_as_if_drafts_were_certain,
    ],
)
def test_the_test_of_frequencies_notices_a_verification_that(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert p_value_of_the_right_one() > FALSE_ALARM_RATE / 4
    break_it(monkeypatch)
    assert least_p_value(writers()) < FALSE_ALARM_RATE / 4


def test_strict_drafts_are_accepted_less_often_but_with_the_same_noise_more_than_by_chance() -> (
    None
):
    counts = torch.ones(SEEDS, dtype=torch.int64)
    sampling = sampling_of(torch.arange(SEEDS))
    model, drafter = some_table(SIZE, 0), some_table(SIZE, 0) + some_table(SIZE, 1, 0.5)
    p, q = chain_of(model)[0], chain_of(drafter)[0]
    positions = torch.zeros(SEEDS, dtype=torch.int64)
    draft = sample(drafter[:1].expand(SEEDS, -1), at(sampling, positions))[:, None]
    rows = torch.stack([model[0].expand(SEEDS, -1), model[draft[:, 0]]], 1).flatten(0, 1)
    drafts = unverified_of(draft, counts, positions, q.float().expand(SEEDS, 1, -1))
    rates = {
        method: float((verify(rows, sampling, drafts, method).num_sampled - 1).double().mean())
        for method in REJECTION_METHODS
    }
    assert rates["probabilistic"] == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.01)
    assert float((p * q).sum()) + 0.1 < rates["strict"] < rates["probabilistic"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("values", [{}, {"top_k": 5, "top_p": 0.7}], ids=["plain", "filtered"])
def test_they_do_where_the_drafters_numbers_are_none(number: float, values: dict[str, Any]) -> None:
    """After some tokens: the drafts before that one are as good as ever."""
    written = writers(**values)
    written.drafter[2:6, 3] = number
    assert least_p_value(written, **values) > FALSE_ALARM_RATE / 4
