"""A core with steps under way makes the tokens of one without, and has work in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.token_readout import TokenReadout, TokensUnderWay
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    generate,
    make_core,
    plain_tokens,
    run,
)

BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Tokens come to the CPU only when they are waited for, as from a GPU; says what came when."""
    happened: list[str] = []
    start, wait = TokenReadout.start, TokensUnderWay.wait
    device: dict[int, tuple[int, torch.Tensor]] = {}  # its mark in the place, and the tokens

    def start_late(self: TokenReadout, tokens: torch.Tensor) -> TokensUnderWay:
        happened.append("launch")
        mark = -len(happened) - 10  # what nobody may read
        under_way = start(self, torch.full_like(tokens, mark))
        device[id(under_way)] = mark, tokens.clone()
        return under_way

    def wait_for(self: TokensUnderWay) -> list[int]:
        happened.append("wait")
        mark, tokens = device.pop(id(self))
        assert set(wait(self)) == {mark}, "another step's tokens are in this one's place"
        return [int(token) for token in tokens]

    monkeypatch.setattr(TokenReadout, "start", start_late)
    monkeypatch.setattr(TokensUnderWay, "wait", wait_for)
    yield happened
    assert len(device) <= 1


def both_cores(folder: str, **given: Any) -> tuple[EngineCore, EngineCore]:
    """One with asynchronous steps, and one without."""
    return make_core(folder, async_scheduling=True, **given), make_core(folder, **given)


@BOTH
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 7},
        {"enable_chunked_prefill": False},
        {"enable_prefix_caching": False},
        {"block_size": 1, "num_blocks": 500},
        {"num_blocks": 13, "max_num_batched_tokens": 30},
    ],
    ids=str,
)
def test_tokens_are_those_of_a_plain_loop(
    folder: str, params: SamplingParams, given: dict[str, Any]
) -> None:
    core = make_core(folder, async_scheduling=True, **given)
    expected = {name: plain_tokens(folder, each, COUNT, params) for name, each in PROMPTS.items()}
    for _ in range(2):  # the second time from the prefix cache
        assert generate(core, PROMPTS, params) == expected
    assert (core.metrics()["preemptions"] > 2) == (given.get("num_blocks") == 13)


def test_a_step_is_launched_before_the_one_before_is_waited_for(
    folder: str, late: list[str]
) -> None:
    core = make_core(folder, async_scheduling=True)
    core.add_request("a", PROMPTS["own-8"], GREEDY)
    run(core)
    assert late == ["launch", *["launch", "wait"] * (COUNT - 1), "wait"]
    late.clear()
    core = make_core(folder)
    core.add_request("a", PROMPTS["own-8"], GREEDY)
    run(core)
    assert late == ["launch", "wait"] * COUNT


def test_requests_in_another_order_get_their_own_tokens(folder: str) -> None:
    """One ends, one begins, and one is in its prompt: rows of the step before lie elsewhere."""
    core = make_core(folder, async_scheduling=True, max_num_batched_tokens=12, max_num_seqs=3)
    wanted = {"own-8": 3, "own-33": 9, "own-15": 5, "alike-5": 2, "own-4": 7, "own-1": 1}
    for number, (name, count) in enumerate(wanted.items()):
        temperature = 0.9 if number % 2 else 0.0
        params = SamplingParams(max_tokens=count, temperature=temperature, seed=number)
        core.add_request(name, PROMPTS[name], params)
    found, _ = run(core)
    for number, (name, count) in enumerate(wanted.items()):
        temperature = 0.9 if number % 2 else 0.0
        params = SamplingParams(max_tokens=count, temperature=temperature, seed=number)
        assert found[name] == plain_tokens(folder, PROMPTS[name], count, params), name


@BOTH
def test_stop_tokens_end_a_text_and_nothing_comes_after(
    folder: str, params: SamplingParams
) -> None:
    whole = {name: plain_tokens(folder, each, COUNT, params) for name, each in PROMPTS.items()}
    cores = both_cores(folder)
    for core in cores:
        for number, (name, prompt) in enumerate(PROMPTS.items()):
            stop = whole[name][number % COUNT]
            own = SamplingParams(
                max_tokens=COUNT,
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                seed=params.seed,
                stop_token_ids=(stop,),
            )
            core.add_request(name, prompt, own)
    ahead, plainly = (run(core) for core in cores)
    assert ahead == plainly
    assert {output.finish_reason for output in ahead[1].values()} == {FinishReason.STOP}


@BOTH
def test_logprobs_are_the_same(folder: str, params: SamplingParams) -> None:
    words: list[dict[str, list[Any]]] = []
    for core in both_cores(folder):
        said: dict[str, list[Any]] = {}
        for number, (name, prompt) in enumerate(PROMPTS.items()):
            asked = None if number % 3 == 0 else number
            own = SamplingParams(
                max_tokens=5, temperature=params.temperature, seed=3, logprobs=asked
            )
            core.add_request(name, prompt, own)
        while core.has_unfinished():
            for output in core.step():
                said.setdefault(output.request_id, []).extend(output.logprobs)
        words.append(said)
    ahead, plainly = words
    assert ahead.keys() == plainly.keys()
    for number, name in enumerate(PROMPTS):
        assert len(ahead[name]) == (5 if number % 3 else 0)
        for one, other in zip(ahead[name], plainly[name], strict=True):
            assert (one.token_ids, one.rank) == (other.token_ids, other.rank)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_numbers_that_are_none_end_their_request_and_no_other_one(folder: str) -> None:
    others = [PROMPTS[name] for name in ("own-8", "alike-0")]
    seen = {t for each in others for t in [*each, *plain_tokens(folder, each, COUNT)]}
    text = plain_tokens(folder, PROMPTS["own-15"], COUNT)
    place = next(n for n, t in enumerate(text) if n > 1 and t not in seen | {*text[:n]})
    ends: list[CoreOutput] = []
    for core in both_cores(folder):
        core.add_request("good", PROMPTS["own-8"], GREEDY)
        core.add_request("bad", PROMPTS["own-15"], GREEDY)
        core.runner.model.embed_tokens.weight.data[text[place]] = float("nan")
        tokens, last = run(core)
        assert tokens["bad"] == text[: place + 1]
        assert last["bad"].finish_reason is FinishReason.ERROR
        ends.append(last["bad"])
        assert tokens["good"] == plain_tokens(folder, PROMPTS["own-8"], COUNT)
        core.add_request("next", PROMPTS["alike-0"], GREEDY)
        assert run(core)[0]["next"] == plain_tokens(folder, PROMPTS["alike-0"], COUNT)
    assert ends[0] == ends[1], "the error names the step in which it was"


def test_an_abort_leaves_nothing_under_way(folder: str) -> None:
    core = make_core(folder, async_scheduling=True)
    core.add_request("a", PROMPTS["own-8"], GREEDY)
    core.add_request("b", PROMPTS["own-15"], GREEDY)
    core.step()
    core.step()
    core.abort(["a", "b"])
    assert core.has_unfinished(), "a step is under way"
    assert core.step() == []
    assert not core.has_unfinished()
    assert core.metrics()["free_blocks"] == 199
    assert generate(core, PROMPTS, GREEDY)["own-8"] == plain_tokens(folder, PROMPTS["own-8"], COUNT)


def test_a_shutdown_waits_for_the_step_under_way(folder: str, late: list[str]) -> None:
    core = make_core(folder, async_scheduling=True)
    core.add_request("a", PROMPTS["own-8"], GREEDY)
    core.step()
    assert late == ["launch"]
    core.shutdown()
    core.shutdown()
    assert late == ["launch", "wait"]
    assert not core.has_unfinished()


def test_what_a_step_came_to_is_told_to_other_ranks_when_it_is_known(folder: str) -> None:
    cores = both_cores(folder)
    digests: list[list[int]] = []
    for core in cores:
        core.add_request("a", PROMPTS["own-8"], GREEDY)
        found = [core.step_digest()]
        while core.has_unfinished():
            core.step()
            found.append(core.step_digest())
        digests.append(found)
    ahead, plainly = digests
    assert ahead[2:] == plainly[1:], "a step later"
    assert len(set(plainly)) == len(plainly)


class CoreMachine(RuleBasedStateMachine):
    """Requests come, are aborted and are computed by both cores; what each says is the same."""

    folder: str

    @initialize(
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.integers(3, 40),
        num_blocks=st.integers(12, 40),
        enable_prefix_caching=st.booleans(),
    )
    def start(self, **given: Any) -> None:
        self.core = make_core(self.folder, async_scheduling=True, **given)
        self.wanted: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.aborted: set[str] = set()

    @rule(
        name=st.sampled_from(sorted(PROMPTS)),
        count=st.integers(1, 9),
        sampled=st.booleans(),
        stops=st.integers(0, 9),
    )
    def arrive(self, name: str, count: int, sampled: bool, stops: int) -> None:
        """Where ``stops`` is less than ``count``, it ends by the token that is there."""
        how: dict[str, Any] = {"temperature": 0.9, "seed": 5} if sampled else {}
        whole = plain_tokens(self.folder, PROMPTS[name], 9, SamplingParams(max_tokens=9, **how))
        wanted, stop = whole[:count], tuple[int, ...]()
        if stops < count:
            stop = (whole[stops],)
            wanted = whole[: whole.index(whole[stops]) + 1]
        request_id = f"r{len(self.wanted)}"
        self.wanted[request_id] = wanted
        params = SamplingParams(max_tokens=count, stop_token_ids=stop, **how)
        self.core.add_request(request_id, PROMPTS[name], params)

    @rule(number=st.integers(0, 12))
    def abort(self, number: int) -> None:
        if f"r{number}" in self.wanted.keys() - self.ended:
            self.aborted.add(f"r{number}")
        self.core.abort([f"r{number}"])

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            for output in self.core.step():
                name = output.request_id
                assert name not in self.ended | self.aborted
                self.tokens.setdefault(name, []).extend(output.new_token_ids)
                assert self.tokens[name] == self.wanted[name][: len(self.tokens[name])]
                if output.finish_reason is not None:
                    self.ended.add(name)
                    assert self.tokens[name] == self.wanted[name]

    def teardown(self) -> None:
        while hasattr(self, "core") and self.core.has_unfinished():
            self.step(1)
        if hasattr(self, "core"):
            assert self.ended | self.aborted == set(self.wanted)
            self.core.shutdown()


def test_whatever_comes_each_request_gets_its_own_tokens(folder: str) -> None:
    class Machine(CoreMachine):
        """The machine with the model of these tests."""

    Machine.folder = folder
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
