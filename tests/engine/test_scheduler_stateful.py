"""Whatever arrives, is aborted, preempted or guessed: the scheduler keeps its promises.

``scheduler_support.Harness`` checks them at every step; here it is driven at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sample_engine.batch.request_limits import SchedulerLimits
from tests.engine.support.scheduler import VOCAB, Harness, limits, next_token

# Few texts to begin with, so that requests share them.
BEGINNINGS = ([0], [1, 2, 0, 1], [1, 2, 0, 1, 2, 2, 2, 1, 0], [2] * 21)


class Guesses:
    """Drafts, of which a part is right."""

    def __init__(self, most: int, share_right: float, chance: random.Random) -> None:
        self.most = most
        self.share_right = share_right
        self.chance = chance

    def __call__(self, text: Sequence[int]) -> Sequence[int]:
        drafts: list[int] = []
        for _ in range(self.chance.randint(0, self.most)):
            right = self.chance.random() < self.share_right
            guess = next_token([*text, *drafts]) if right else self.chance.randrange(VOCAB)
            drafts.append(guess)
        return drafts


SOME_LIMITS = st.builds(
    limits,
    num_blocks=st.integers(2, 24),
    block_size=st.sampled_from([1, 2, 4, 8]),
    max_model_len=st.integers(2, 60),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    enable_chunked_prefill=st.booleans(),
    enable_prefix_caching=st.booleans(),
    lookahead=st.sampled_from([0, 0, 1, 7]),
    ahead=st.sampled_from([0, 0, 4]),
    sees_next_token=st.booleans(),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come and go between steps."""

    harness: Harness

    @initialize(
        within=SOME_LIMITS,
        most_drafts=st.sampled_from([0, 0, 1, 4]),
        share_right=st.sampled_from([0.0, 0.5, 1.0]),
        seed=st.integers(0, 1000),
        shares=st.booleans(),
    )
    def start(
        self,
        within: SchedulerLimits,
        most_drafts: int,
        share_right: float,
        seed: int,
        shares: bool,
    ) -> None:
        guesses = Guesses(most_drafts, share_right, random.Random(seed))
        # What was evicted here comes back from the store.
        self.harness = Harness(within, guesses if most_drafts else None, {} if shares else None)

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        rest=st.lists(st.integers(0, VOCAB - 2), max_size=6),
        max_tokens=st.integers(1, 30),
        ignore_eos=st.booleans(),
        times=st.integers(1, 3),
    )
    def arrive(
        self, beginning: list[int], rest: list[int], max_tokens: int, ignore_eos: bool, times: int
    ) -> None:
        for _ in range(times):
            self.arrive_once(beginning, rest, max_tokens, ignore_eos)

    def arrive_once(
        self, beginning: list[int], rest: list[int], max_tokens: int, ignore_eos: bool
    ) -> None:
        name = f"r{len(self.harness.requests)}"
        prompt = beginning + rest
        words = self.harness.try_add(name, prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)
        within = self.harness.limits
        fits = (
            len(prompt) < within.max_model_len
            and len(prompt) <= (within.num_blocks - 1) * within.block_size
            and (within.enable_chunked_prefill or len(prompt) <= within.max_num_batched_tokens)
        )
        assert (words is None) == fits, words

    @rule(number=st.integers(0, 30))
    def abort(self, number: int) -> None:
        self.harness.abort(f"r{number}")

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.harness.step()

    @precondition(lambda self: self.harness.scheduler.running)
    @rule()
    def arrive_as_copy_of_a_running_one(self) -> None:
        original = self.harness.scheduler.running[-1]
        text = original.token_ids(0, original.num_tokens)
        self.harness.try_add(f"r{len(self.harness.requests)}", text, max_tokens=3)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.run()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_run_of_random_traffic_ends_with_every_request_served(seed: int) -> None:
    chance = random.Random(seed)
    harness = Harness(
        limits(
            num_blocks=chance.randint(11, 14),
            block_size=4,
            max_model_len=60,
            max_num_batched_tokens=chance.choice([8, 24]),
            enable_chunked_prefill=bool(seed % 2),
            lookahead=seed % 3,
            sees_next_token=seed % 3 == 2,
        ),
        Guesses(3, 0.6, chance) if seed % 3 else None,
    )
    for number in range(600):
        prompt = chance.choice(BEGINNINGS)[: 8 if seed % 2 == 0 else None] + chance.choices(
            range(VOCAB - 1), k=chance.randint(0, 12 if seed % 2 else 0)
        )
        harness.add(f"r{number}", prompt, max_tokens=chance.randint(1, 40))
        if chance.random() < 0.1:
            harness.abort(f"r{chance.randrange(number + 1)}")
        for _ in range(chance.randint(0, 5)):
            harness.step()
    harness.run()
    counters = harness.scheduler.counters
    assert counters.preemptions > 30
    assert counters.prefix_cached_tokens > 100
