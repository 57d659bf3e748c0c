"""What verification gives for each request, exactly: whatever the batch, the method, the device."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sample_engine.batch.draft_tensors import RequestSampling, Unverified, Verdict
from sample_engine.config import REJECTION_METHODS
from sample_engine.sampling import probabilities, sample
from sample_engine.speculate.rejection import verify
from tests.engine.support.rejection import (
    Writers,
    accept_drafts,
    at,
    sampling_of,
    some_table,
    unverified_of,
)
from tests.engine.support.waiting import no_waiting

SIZE = 12
DRAFTS = 4
both_methods = pytest.mark.parametrize("method", REJECTION_METHODS)


def certain(verdict: Verdict) -> list[tuple[int, ...]]:
    """The tokens of each request; what is behind them is -1."""
    lists: list[list[int]] = verdict.token_ids.tolist()
    counts: list[int] = verdict.num_sampled.tolist()
    for row, count in zip(lists, counts, strict=True):
        assert row[count:] == [-1] * (len(row) - count)
        assert min(row[:count], default=0) >= 0
    return [tuple(row[:count]) for row, count in zip(lists, counts, strict=True)]


@dataclasses.dataclass
class Step:
    """A step of many different requests: any number of drafts, settings, in mid-prompt or not."""

    logits: list[torch.Tensor]  # of each request [number of drafts + 1, V]; [0, V] in mid-prompt
    values: list[dict[str, Any]]  # of each request: its settings and its seed
    drafts: torch.Tensor  # [R, k]
    num_drafts: torch.Tensor  # [R]
    positions: torch.Tensor  # [R]
    probs: torch.Tensor | None  # [R, k, V]

    @classmethod
    def some(cls, num_reqs: int, one_hot: bool) -> Step:
        rng = torch.Generator().manual_seed(0)
        counts = torch.randint(-1, DRAFTS + 1, (num_reqs,), generator=rng)
        logits = [torch.randn(int(n) + 1, SIZE, generator=rng) for n in counts]
        drafts = torch.randint(0, SIZE, (num_reqs, DRAFTS), generator=rng)
        for row, count, mine in zip(drafts, counts.tolist(), logits, strict=True):
            if len(row) and count > 0:  # likely ones, so that some are accepted
                row[:count] = mine[:count].argmax(-1)
        kinds: list[dict[str, Any]] = [
            {},
            {"temperature": 0.0},
            {"top_k": 4},
            {"top_p": 0.7, "temperature": 0.5},
        ]
        values = [{"seed": 7 * each, **kinds[each % 4]} for each in range(num_reqs)]
        probs = torch.randn(num_reqs, DRAFTS, SIZE, generator=rng).softmax(-1)
        positions = torch.randint(0, 1000, (num_reqs,), generator=rng)
        return cls(logits, values, drafts, counts, positions, None if one_hot else probs)

    def sampling(self, which: list[int]) -> RequestSampling:
        chosen = [{"temperature": 1.0, "top_k": 0, "top_p": 1.0} | self.values[r] for r in which]
        columns = {name: [value[name] for value in chosen] for name in chosen[0]}
        return sampling_of(columns.pop("seed"), **columns)

    def verified(self, which: list[int], method: str, padding: int = 0) -> list[tuple[int, ...]]:
        """What comes out for some of the requests in this order, and so many that are nobody."""
        owners = which + [which[0]] * padding
        counts = self.num_drafts[owners]
        counts[len(which) :] = -1
        probs = None if self.probs is None else self.probs[owners]
        drafts = unverified_of(self.drafts[owners], counts, self.positions[owners], probs)
        logits = torch.cat([self.logits[each] for each in which])
        verdict = certain(verify(logits, self.sampling(owners), drafts, method))
        assert verdict[len(which) :] == [()] * padding
        return verdict[: len(which)]


@both_methods
@pytest.mark.parametrize("one_hot", [True, False], ids=["one-hot", "drawn"])
def test_a_request_does_not_depend_on_the_batch(one_hot: bool, method: str) -> None:
    step, everyone = Step.some(60, one_hot), list(range(60))
    together = step.verified(everyone, method)
    assert {len(tokens) for tokens in together} == {0, 1, 2, 3, 4, 5}
    assert step.verified(everyone[::-1], method, padding=3) == together[::-1]
    alone = [step.verified([each], method)[0] for each in everyone]
    assert alone == together
    assert [step.verified([each], method, padding=1)[0] for each in everyone] == together


@both_methods
def test_a_request_does_not_depend_on_how_many_drafts_the_others_may_have(method: str) -> None:
    step = Step.some(40, one_hot=True)
    few = [each for each in range(40) if step.num_drafts[each] <= 2]
    expected = step.verified(few, method)
    step.drafts = step.drafts[:, :2]
    assert step.verified(few, method) == expected


@both_methods
def test_without_drafts_and_behind_the_last_one_comes_what_is_sampled_plainly(method: str) -> None:
    step, seen = Step.some(200, one_hot=False), set()
    for each, tokens in enumerate(step.verified(list(range(200)), method)):
        if len(tokens) == int(step.num_drafts[each]) + 1 and tokens:
            position = step.positions[each : each + 1] + len(tokens) - 1
            how = at(step.sampling([each]), position)
            assert tokens[-1] == sample(step.logits[each][-1:], how).item()
            assert list(tokens[:-1]) == step.drafts[each, : len(tokens) - 1].tolist()
            seen.add(len(tokens))
    assert seen == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("values", [{}, {"top_p": 0.8}, {"temperature": 0.0}], ids=str)
def test_strict_text_is_the_text_without_drafts(values: dict[str, float], draws: bool) -> None:
    sampling = sampling_of(torch.arange(500), **values)
    model, drafter = some_table(SIZE, 0), some_table(SIZE, 0) + some_table(SIZE, 1, 0.7)
    last, plain = torch.zeros(500, dtype=torch.int64), []
    for position in range(1, 13):
        last = sample(model[last], at(sampling, torch.full((500,), position)))
        plain.append(last)
    for counts in (torch.full((500,), 3), torch.arange(500) % 5):
        text = Writers(model, drafter, sampling, counts, draws, "strict").write(12)
        assert text.equal(torch.stack(plain, 1))


@st.composite
def greedy_steps(draw: st.DrawFn) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Logits of each request, with ties, and its drafts, of which many are right."""
    logits, drafts = [], []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(0, 4))
        values = st.lists(st.sampled_from([-1.0, 0.0, 1.0, 1.0]), min_size=4, max_size=4)
        mine = torch.tensor([draw(values) for _ in range(count + 1)])
        drafts.append(
            [draw(st.just(int(row.argmax())) | st.integers(0, 3)) for row in mine[:count]]
        )
        logits.append(mine)
    return logits, drafts


@both_methods
@pytest.mark.parametrize("one_hot", [True, False], ids=["one-hot", "drawn"])
@settings(deadline=None)
@given(step=greedy_steps())
@example(step=([torch.zeros(1, 4)], [[]]))
def test_greedy_requests_get_the_models_choices_and_nothing_else(
    method: str, one_hot: bool, step: tuple[list[torch.Tensor], list[list[int]]]
) -> None:
    logits, drafts = step
    expected = [
        accept_drafts(mine.argmax(-1).tolist(), guesses)
        for mine, guesses in zip(logits, drafts, strict=True)
    ]
    width = max(map(len, drafts))
    padded = torch.tensor([guesses + [-1] * (width - len(guesses)) for guesses in drafts])
    padded = padded.to(torch.int64).reshape(len(drafts), width)
    probs = None if one_hot else torch.full((len(drafts), width, 4), 0.25)
    counts = torch.tensor([len(guesses) for guesses in drafts])
    unverified = unverified_of(padded, counts, 5, probs)
    seeds = list(range(len(drafts)))
    for sampling in (
        None,
        sampling_of(seeds, temperature=0.0),
        sampling_of(seeds, temperature=0.0, top_k=2, top_p=0.5),
    ):
        assert certain(verify(torch.cat(logits), sampling, unverified, method)) == expected


@both_methods
def test_where_nothing_is_sampled_nothing_comes_out(method: str) -> None:
    counts = torch.tensor([-1, -1])
    drafts = unverified_of(torch.zeros(2, 3, dtype=torch.int64), counts)
    for sampling in (None, sampling_of([0, 1])):
        assert certain(verify(torch.zeros(0, 5), sampling, drafts, method)) == [(), ()]


def test_a_draft_that_the_model_excludes_is_never_accepted_and_never_sampled() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0]]).expand(2000, -1)
    one, seeds = torch.ones(1000, dtype=torch.int64), torch.arange(1000)
    probs = torch.tensor([0.0, 0.0, 1.0]).expand(1000, 1, -1)
    for q in (None, probs, 0.0 * probs):  # also where q was rounded to 0
        drafts = unverified_of(torch.full((1000, 1), 2), one, probs=q)
        verdict = verify(logits, sampling_of(seeds, top_k=1), drafts)
        assert certain(verdict) == [(1,)] * 1000


def test_a_draft_whose_q_was_rounded_to_0_is_accepted() -> None:
    logits, probs = torch.zeros(200, 3), torch.tensor([0.0, 0.5, 0.5]).expand(100, 1, -1)
    drafts = unverified_of(torch.zeros(100, 1).long(), torch.ones(100).long(), probs=probs)
    assert (verify(logits, sampling_of(torch.arange(100)), drafts).num_sampled == 2).all()


def test_where_rounding_alone_rejects_a_draft_there_is_still_a_token() -> None:
    """There q is a little more than p everywhere, so nothing is left of the difference."""
    seeds = torch.arange(3000)
    p = probabilities(torch.zeros(1, 3), at(sampling_of([0]), torch.zeros(1).long()))
    probs = (p * 1.5).expand(3000, 1, -1)
    drafts = unverified_of(torch.ones(3000, 1).long(), torch.ones(3000).long(), probs=probs)
    tokens = certain(verify(torch.zeros(6000, 3), sampling_of(seeds), drafts))
    rejected = [each for each in tokens if len(each) == 1]
    assert len(rejected) > 500
    assert {each[0] for each in rejected} == {0, 1, 2}


def test_an_unknown_method_is_refused_by_name() -> None:
    drafts = unverified_of(torch.zeros(1, 1).long(), torch.ones(1).long())
    with pytest.raises(ValueError, match="'lenient' is none of probabilistic, strict"):
        verify(torch.zeros(2, 3), None, drafts, "lenient")


# The device


def moved(value: Any, device: str) -> Any:
    """The same dataclass with its tensors elsewhere."""
    tensors = {
        field.name: part.to(device)
        for field in dataclasses.fields(value)
        if isinstance(part := getattr(value, field.name), torch.Tensor)
    }
    return dataclasses.replace(value, **tensors)


def large_step(num_reqs: int, size: int) -> tuple[torch.Tensor, RequestSampling, Unverified]:
    rng = torch.Generator().manual_seed(0)
    counts = torch.randint(-1, 4, (num_reqs,), generator=rng)
    logits = (torch.randn(int((counts + 1).sum()), size, generator=rng) * 12).round() / 4
    draft = torch.randint(0, min(size, 40), (num_reqs, 3), generator=rng)
    probs = torch.zeros(num_reqs, 3, size)
    probs[..., :40] = torch.randn(num_reqs, 3, 40, generator=rng).softmax(-1)
    each = torch.arange(num_reqs) % 4
    sampling = sampling_of(
        torch.arange(num_reqs),
        temperature=torch.tensor([0.0, 1.0, 1.3, 0.8])[each],
        top_k=torch.tensor([0, 0, 50, 0])[each],
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.9])[each],
    )
    return logits, sampling, unverified_of(draft, counts, 17, probs)


@both_methods
@pytest.mark.parametrize("one_hot", [True, False], ids=["one-hot", "drawn"])
def test_nothing_depends_on_what_is_in_the_tensors(one_hot: bool, method: str) -> None:
    """On a device without data all that would wait for some raises."""
    logits, sampling, unverified = large_step(9, 50)
    if one_hot:
        unverified = dataclasses.replace(unverified, probs=None)
    sampling, unverified = moved(sampling, "meta"), moved(unverified, "meta")
    for how in (None, sampling, dataclasses.replace(sampling, filtered=False)):
        verdict = verify(logits.to("meta"), how, unverified, method)
        assert verdict.token_ids.shape == (9, 4)
        assert verdict.num_sampled.shape == (9,)


@pytest.mark.gpu
@both_methods
def test_the_gpu_verifies_as_the_cpu_does_and_nothing_waits_for_it(method: str) -> None:
    logits, sampling, unverified = large_step(64, 5000)
    one_hot = dataclasses.replace(unverified, probs=None)
    for drafts in (unverified, one_hot):
        for how in (None, sampling, dataclasses.replace(sampling, filtered=False)):
            there = (
                logits.cuda(),
                None if how is None else moved(how, "cuda"),
                moved(drafts, "cuda"),
            )
            with no_waiting():
                verdict = verify(*there, method)
            expected = verify(logits, how, drafts, method)
            assert verdict.token_ids.cpu().equal(expected.token_ids)
            assert verdict.num_sampled.cpu().equal(expected.num_sampled)
