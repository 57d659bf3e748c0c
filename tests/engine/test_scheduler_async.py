"""Steps that are scheduled before the tokens of the one before are known come to the same texts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sample_engine.batch.request import FinishReason, RequestStatus
from sample_engine.batch.request_limits import SchedulerLimits
from tests.engine.support.asynchronous import AsyncHarness
from tests.engine.support.scheduler import EOS, VOCAB, Harness, limits, next_token, parts, text
from tests.engine.test_scheduler_stateful import BEGINNINGS


def prompt_that_ends_after(count: int) -> list[int]:
    """A prompt of which the model's answer has so many tokens, the end among them."""
    for number in range(10_000):
        known = prompt = [number % 3, number // 3 % 3, *text(number % 7, number)]
        answer: list[int] = []
        while len(answer) < count and EOS not in answer:
            answer.append(next_token([*known, *answer]))
        if answer.index(EOS) + 1 == count if EOS in answer else False:
            return prompt
    raise AssertionError("no such prompt")


def test_a_request_goes_on_before_its_token_is_known() -> None:
    harness = AsyncHarness(limits())
    harness.add("a", text(5), max_tokens=4, ignore_eos=True)
    assert harness.step() == []
    assert parts(harness) == [("a", 0, 5)]
    first = harness.step()
    assert parts(harness) == [("a", 5, 1)], "scheduled without the token that is computed here"
    assert [output.request_id for output in first] == ["a"]
    harness.run()
    assert harness.most_under_way == 2
    # The prompt, and a step for each token but the last: none that nobody needs.
    assert harness.scheduler.counters.steps == 4


def test_a_token_is_fed_to_the_next_step_also_of_a_request_beside_a_prompt() -> None:
    harness = AsyncHarness(limits(max_num_batched_tokens=8))
    harness.add("a", text(5), max_tokens=6, ignore_eos=True)
    harness.step()
    harness.add("b", text(20, 1), max_tokens=3, ignore_eos=True)
    harness.step()
    assert parts(harness) == [("a", 5, 1), ("b", 0, 7)]
    harness.step()
    assert parts(harness) == [("a", 6, 1), ("b", 7, 7)]
    harness.run()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_what_is_computed_beyond_the_end_of_a_text_is_dropped(count: int) -> None:
    prompt = prompt_that_ends_after(count)
    alone, ahead = Harness(limits()), AsyncHarness(limits())
    for harness in (alone, ahead):
        harness.add("a", prompt, max_tokens=50)
        harness.run()
    assert ahead.ended == alone.ended == {"a": FinishReason.STOP}
    assert ahead.tokens == alone.tokens
    # Exactly the one step that was under way.
    counted, plainly = (each.scheduler.counters for each in (ahead, alone))
    assert counted.scheduled_tokens == plainly.scheduled_tokens + 1
    assert counted.generated_tokens == plainly.generated_tokens == count
    assert counted.sampling_steps == plainly.sampling_steps
    assert counted.finished_requests == 1


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_nothing_is_computed_beyond_max_tokens(max_tokens: int) -> None:
    harness = AsyncHarness(limits())
    harness.add("a", text(5), max_tokens=max_tokens, ignore_eos=True)
    harness.run()
    assert harness.scheduler.counters.scheduled_tokens == 5 + max_tokens - 1
    assert harness.ended == {"a": FinishReason.LENGTH}


def test_nothing_is_computed_beyond_the_longest_text() -> None:
    harness = AsyncHarness(limits(max_model_len=9))
    harness.add("a", text(5), ignore_eos=True)
    harness.run()
    assert harness.scheduler.counters.scheduled_tokens == 8
    assert harness.ended == {"a": FinishReason.LENGTH}


def test_a_request_that_fills_the_cache_is_refused_only_when_its_last_token_is_known() -> None:
    prompt = prompt_that_ends_after(4)
    tight = limits(num_blocks=1 + len(prompt) + 3, block_size=1)
    harness = AsyncHarness(tight)
    harness.add("ends", prompt, max_tokens=50)
    harness.run()
    assert harness.ended["ends"] is FinishReason.STOP, "the token that ends it came in time"
    harness.add("goes on", prompt, max_tokens=50, ignore_eos=True)
    harness.run()
    assert harness.ended["goes on"] is FinishReason.ERROR
    assert harness.scheduler.counters.preemptions == 0


def test_a_request_starts_only_if_there_are_blocks_for_the_tokens_under_way_too() -> None:
    harness = AsyncHarness(limits(num_blocks=10, block_size=1, max_model_len=12))
    harness.add("a", text(4), max_tokens=5, ignore_eos=True)
    harness.step()
    harness.add("b", text(3, 1), max_tokens=5, ignore_eos=True)
    harness.step()
    assert parts(harness) == [("a", 4, 1)], "one of four free blocks is for a's next token"
    harness.run()
    assert harness.scheduler.counters.preemptions == 0


def test_a_preempted_request_computes_the_token_under_way_anew() -> None:
    harness = AsyncHarness(limits(num_blocks=8, block_size=2, max_model_len=20))
    for name in "ab":
        harness.add(name, text(4, ord(name)), max_tokens=8, ignore_eos=True)
    while not harness.scheduler.counters.preemptions:
        harness.step()
    victim = harness.requests["b"]
    assert victim.status is RequestStatus.PREEMPTED
    assert victim.num_output_placeholders == victim.num_computed_tokens == 0
    known = list(victim.output_token_ids)
    harness.step()
    assert victim.output_token_ids == known, "a token of a step before the preemption was taken"
    harness.run()
    assert [len(tokens) for tokens in harness.tokens.values()] == [8, 8]


def test_blocks_are_found_only_when_the_step_that_fills_them_has_ended_well() -> None:
    harness = AsyncHarness(limits(block_size=4))
    harness.add("a", text(8), max_tokens=9, ignore_eos=True)
    harness.step()
    assert len(harness.scheduler.kv.prefix_cache) == 0, "nobody knows yet what the step came to"
    harness.step()
    assert len(harness.scheduler.kv.prefix_cache) == 2
    for _ in range(3):
        harness.step()
    # Tokens 8 to 11 are known and in steps; that of token 11 is still under way.
    assert harness.requests["a"].num_tokens == 12
    assert len(harness.scheduler.kv.prefix_cache) == 2
    harness.step()
    assert len(harness.scheduler.kv.prefix_cache) == 3


def test_an_aborted_request_leaves_its_blocks_and_its_step_without_a_word() -> None:
    harness = AsyncHarness(limits())
    harness.add("a", text(5), max_tokens=9, ignore_eos=True)
    harness.add("b", text(6), max_tokens=9, ignore_eos=True)
    harness.step()
    harness.step()
    harness.abort("a")
    outputs = harness.step()
    assert [output.request_id for output in outputs] == ["b"]
    harness.run()
    assert harness.ended["a"] is FinishReason.ABORT


def test_an_id_may_be_used_again_while_a_step_of_the_first_one_is_under_way() -> None:
    harness = AsyncHarness(limits(enable_prefix_caching=False))
    harness.add("a", text(5), max_tokens=9, ignore_eos=True)
    harness.step()
    harness.step()
    first = harness.requests["a"]
    harness.scheduler.abort(["a"])
    again = harness.add("a", text(3, 2), max_tokens=3, ignore_eos=True)
    del harness.expected["a"]
    harness.run()
    assert len(first.output_token_ids) == 1
    assert len(again.output_token_ids) == 3


def test_numbers_that_are_not_finite_name_their_own_step_and_end_their_request_alone() -> None:
    harness = AsyncHarness(limits())
    harness.add("good", text(5), max_tokens=9, ignore_eos=True)
    bad = harness.add("bad", text(6, 1), max_tokens=9, ignore_eos=True)
    harness.step()
    harness.step()
    harness.device.broken.add("bad")
    harness.step()
    assert harness.scheduler.counters.steps == 3
    harness.step()  # takes in the third one, when the fourth has been scheduled
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error is not None
    assert "in step 3 of the engine" in bad.error
    assert "for token 3 of the answer, after 8 tokens" in bad.error
    assert len(harness.scheduler.kv.prefix_cache) == 1, "only what the good one has computed"
    harness.run()
    assert len(harness.tokens["good"]) == 9


class AsyncMachine(RuleBasedStateMachine):
    """Requests come and go while a step is under way."""

    harness: AsyncHarness

    @initialize(
        within=st.builds(
            limits,
            num_blocks=st.integers(2, 24),
            block_size=st.sampled_from([1, 2, 4, 8]),
            max_model_len=st.integers(2, 60),
            max_num_seqs=st.integers(1, 6),
            max_num_batched_tokens=st.integers(1, 40),
            enable_chunked_prefill=st.booleans(),
            enable_prefix_caching=st.booleans(),
        ),
        shares=st.booleans(),
    )
    def start(self, within: SchedulerLimits, shares: bool) -> None:
        self.harness = AsyncHarness(within, {} if shares else None)

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        rest=st.lists(st.integers(0, VOCAB - 2), max_size=6),
        params=st.fixed_dictionaries(
            {"max_tokens": st.integers(1, 30), "ignore_eos": st.booleans()}
        ),
        times=st.integers(1, 3),
    )
    def arrive(
        self, beginning: list[int], rest: list[int], params: dict[str, Any], times: int
    ) -> None:
        for _ in range(times):
            self.harness.try_add(f"r{len(self.harness.requests)}", beginning + rest, **params)

    @rule(number=st.integers(0, 30))
    def abort(self, number: int) -> None:
        self.harness.abort(f"r{number}")

    @rule(number=st.integers(0, 30))
    def break_one(self, number: int) -> None:
        """From now on its numbers are none."""
        if f"r{number}" in self.harness.requests:
            self.harness.device.broken.add(f"r{number}")

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.harness.step()

    @precondition(lambda self: self.harness.scheduler.running)
    @rule()
    def arrive_as_copy_of_a_running_one(self) -> None:
        original = self.harness.scheduler.running[-1]
        known = original.token_ids(0, original.num_tokens)
        self.harness.try_add(f"r{len(self.harness.requests)}", known, max_tokens=3)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.run()


TestAsyncScheduler = AsyncMachine.TestCase
TestAsyncScheduler.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_of_random_traffic_ends_with_every_request_served(seed: int) -> None:
    chance = random.Random(seed)
    harness = AsyncHarness(
        limits(
            num_blocks=chance.randint(11, 14),
            block_size=4,
            max_model_len=60,
            max_num_batched_tokens=chance.choice([8, 24]),
            enable_chunked_prefill=bool(seed % 2),
        )
    )
    for number in range(300):
        prompt = chance.choice(BEGINNINGS)[: 8 if seed % 2 == 0 else None] + chance.choices(
            range(VOCAB - 1), k=chance.randint(0, 12 if seed % 2 else 0)
        )
        harness.add(f"r{number}", prompt, max_tokens=chance.randint(1, 40))
        if chance.random() < 0.1:
            harness.abort(f"r{chance.randrange(number + 1)}")
        for _ in range(chance.randint(0, 5)):
            harness.step()
    harness.run()
    assert harness.scheduler.counters.preemptions > 15
    assert harness.scheduler.counters.prefix_cached_tokens > 50
