"""Which requests the scheduler computes next: batches, chunks, preemption, prefixes, drafts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from sample_engine.request import FinishReason, RequestStatus, SamplingParams
from tests.engine.scheduler_support import (
    EOS,
    VOCAB,
    Harness,
    continuation,
    limits,
    next_token,
    parts,
    perfect,
    text,
)


def test_it_imports_no_torch() -> None:
    code = "import sample_engine.scheduler, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Batching


def test_requests_run_together_and_each_gets_a_token_a_step() -> None:
    harness = Harness(limits())
    for name in "abc":
        harness.add(name, text(5), max_tokens=4, ignore_eos=True)
    outputs = harness.step()
    assert parts(harness) == [("a", 0, 5), ("b", 0, 5), ("c", 0, 5)]
    assert [output.request_id for output in outputs] == ["a", "b", "c"]
    assert all(len(output.new_token_ids) == 1 for output in outputs)
    harness.step()
    assert parts(harness) == [("a", 5, 1), ("b", 5, 1), ("c", 5, 1)]


def test_a_request_joins_while_others_are_in_the_middle() -> None:
    harness = Harness(limits())
    harness.add("a", text(5), max_tokens=9, ignore_eos=True)
    harness.step()
    harness.add("b", text(7, 1), max_tokens=2, ignore_eos=True)
    harness.step()
    assert parts(harness) == [("a", 5, 1), ("b", 0, 7)]
    harness.run()


def test_a_long_prompt_is_cut_into_chunks_and_samples_at_its_end_alone() -> None:
    harness = Harness(limits(max_num_batched_tokens=8))
    harness.add("a", text(3), max_tokens=6, ignore_eos=True)
    harness.step()
    harness.add("b", text(17, 1), max_tokens=2, ignore_eos=True)
    assert [output.request_id for output in harness.step()] == ["a"]
    assert parts(harness) == [("a", 3, 1), ("b", 0, 7)]
    harness.step()
    assert parts(harness) == [("a", 4, 1), ("b", 7, 7)]
    assert [output.request_id for output in harness.step()] == ["a", "b"]
    assert parts(harness) == [("a", 5, 1), ("b", 14, 3)]


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_a_step() -> None:
    harness = Harness(limits(max_num_batched_tokens=8, enable_chunked_prefill=False))
    harness.add("a", text(6), max_tokens=3, ignore_eos=True)
    harness.add("b", text(8, 1), max_tokens=2, ignore_eos=True)
    harness.add("c", text(1), max_tokens=2, ignore_eos=True)
    for _ in range(3):
        harness.step()
        assert [name for name, _, _ in parts(harness)] == ["a"]
    harness.step()
    assert parts(harness) == [("b", 0, 8)]
    harness.step()
    assert parts(harness) == [("b", 8, 1), ("c", 0, 1)]


def test_no_more_than_max_num_seqs_run_and_they_start_in_order() -> None:
    harness = Harness(limits(max_num_seqs=2))
    for name in "abcd":
        harness.add(name, text(4), max_tokens=2, ignore_eos=True)
    harness.step()
    assert [name for name, _, _ in parts(harness)] == ["a", "b"]
    harness.run()
    assert list(harness.ended) == ["a", "b", "c", "d"]


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones() -> None:
    harness = Harness(limits(num_blocks=9, max_num_seqs=4))
    harness.add("small-0", text(4), max_tokens=8, ignore_eos=True)
    harness.step()
    harness.add("large", text(28, 1), max_tokens=4, ignore_eos=True)
    for number in range(1, 30):
        harness.add(f"small-{number}", text(4), max_tokens=8, ignore_eos=True)
    harness.run()
    assert list(harness.ended)[:2] == ["small-0", "large"]


# Preemption


def preempting(drafts: int = 0) -> Harness:
    """Two requests that do not fit together to their ends."""
    harness = Harness(
        limits(num_blocks=7, enable_prefix_caching=False), perfect(drafts) if drafts else None
    )
    harness.add("first", text(8), max_tokens=12, ignore_eos=True)
    harness.add("second", text(7, 1), max_tokens=12, ignore_eos=True)
    return harness


def test_when_blocks_run_out_the_request_that_came_last_gives_way() -> None:
    harness = preempting()
    while not harness.requests["second"].num_preemptions:
        harness.step()
    first, second = harness.requests["first"], harness.requests["second"]
    assert second.status is RequestStatus.PREEMPTED
    assert second.block_ids == []
    assert second.num_computed_tokens == 0
    assert len(second.output_token_ids) > 2, "what it has made is kept"
    assert first.num_preemptions == 0
    harness.run()
    assert harness.scheduler.counters.preemptions == second.num_preemptions


def test_a_preempted_request_is_computed_anew_and_says_no_token_twice() -> None:
    harness = preempting()
    harness.run()
    for request in harness.requests.values():
        expected, _ = continuation(request.prompt_token_ids, request.params, harness.limits)
        assert harness.tokens[request.request_id] == expected


def test_a_preempted_request_starts_before_those_that_have_not_started() -> None:
    harness = preempting()
    while not harness.requests["second"].num_preemptions:
        harness.step()
    harness.add("third", text(2), max_tokens=20, ignore_eos=True)
    harness.run()
    assert list(harness.ended) == ["first", "second", "third"]


def test_a_preempted_request_finds_its_own_blocks_if_nobody_has_overwritten_them() -> None:
    harness = Harness(limits(num_blocks=7))
    harness.add("first", text(8), max_tokens=12, ignore_eos=True)
    second = harness.add("second", text(7, 1), max_tokens=12, ignore_eos=True)
    harness.run()
    assert second.num_preemptions > 0
    assert second.num_cached_tokens == 0, "that counts what it found at its first start"
    assert harness.scheduler.counters.prefix_cached_tokens > 0


def test_a_preempted_request_that_outgrew_a_step_is_cut_even_without_chunked_prefill() -> None:
    harness = Harness(
        limits(
            num_blocks=8,
            max_num_batched_tokens=9,
            enable_chunked_prefill=False,
            enable_prefix_caching=False,
        )
    )
    harness.add("first", text(8), max_tokens=14, ignore_eos=True)
    second = harness.add("second", text(7, 1), max_tokens=14, ignore_eos=True)
    harness.run()
    assert second.num_preemptions > 0
    assert second.num_prompt_tokens < 9 < second.num_tokens
    assert harness.ended["second"] is FinishReason.LENGTH


def test_a_request_does_not_start_only_to_give_way_at_once() -> None:
    harness = Harness(limits(num_blocks=8))
    harness.add("first", text(7), max_tokens=20, ignore_eos=True)
    harness.step()
    harness.add("second", text(16, 1), max_tokens=5, ignore_eos=True)
    # Five blocks are free, and it wants five; but the first request is about to need one of them.
    harness.step()
    assert [name for name, _, _ in parts(harness)] == ["first"]
    harness.run()
    assert harness.scheduler.counters.preemptions == 0


# Prefixes


def test_a_prompt_that_was_computed_before_is_not_computed_again() -> None:
    harness = Harness(limits())
    harness.add("a", text(13), max_tokens=1)
    harness.run()
    again = harness.add("b", text(13), max_tokens=1)
    (output,) = harness.step()
    assert parts(harness) == [("b", 12, 1)]
    assert again.num_cached_tokens == output.num_cached_tokens == 12


def test_requests_share_the_blocks_of_their_common_beginning() -> None:
    harness = Harness(limits())
    harness.add("a", text(13), max_tokens=9, ignore_eos=True)
    harness.step()
    harness.add("b", text(13), max_tokens=9, ignore_eos=True)
    harness.step()
    a, b = harness.requests["a"].block_ids, harness.requests["b"].block_ids
    assert a[:3] == b[:3]
    assert a[3] != b[3]


# Drafts


def test_right_drafts_make_several_tokens_of_a_step() -> None:
    harness = Harness(limits(eos_token_id=None), perfect(3))
    harness.add("a", text(5), max_tokens=9)
    assert [len(harness.step()[0].new_token_ids) for _ in range(3)] == [1, 4, 4]
    assert parts(harness) == [("a", 9, 4)]
    counters = harness.scheduler.counters
    assert counters.drafted_per_position == [2, 2, 2]
    assert counters.accepted_per_position == [2, 2, 2]


def test_wrong_drafts_are_rolled_back() -> None:
    def wrong_at_second(known: Sequence[int]) -> Sequence[int]:
        right = next_token(known)
        return [right, (next_token([*known, right]) + 1) % VOCAB, 0]

    harness = Harness(limits(eos_token_id=None), wrong_at_second)
    request = harness.add("a", text(5), max_tokens=9)
    harness.step()
    assert len(harness.step()[0].new_token_ids) == 2
    assert request.num_computed_tokens == request.num_tokens - 1 == 7
    harness.step()
    assert parts(harness) == [("a", 7, 4)]
    assert harness.scheduler.counters.accepted_per_position == [2, 0, 0]
    harness.run()


def test_drafts_are_cut_to_the_budget() -> None:
    harness = Harness(limits(eos_token_id=None, max_num_batched_tokens=6), perfect(5))
    harness.add("a", text(3), max_tokens=20)
    harness.add("b", text(3, 1), max_tokens=20)
    harness.step()
    harness.step()
    assert parts(harness) == [("a", 3, 6)]
    harness.run()


def test_drafts_go_no_further_than_max_tokens_and_the_context() -> None:
    for changed, max_tokens in (({}, 3), ({"max_model_len": 8}, 60)):
        harness = Harness(limits(eos_token_id=None, **changed), perfect(5))
        harness.add("a", text(5), max_tokens=max_tokens)
        harness.step()
        harness.step()
        # One token of three is there; the last one is chosen without having been guessed.
        assert parts(harness) == [("a", 5, 2)]
        assert harness.ended == {"a": FinishReason.LENGTH}


def test_an_end_of_text_among_the_accepted_drafts_ends_the_request_there() -> None:
    prompt = next(
        [first, second]
        for first in range(VOCAB)
        for second in range(VOCAB)
        if continuation([first, second], SamplingParams(), limits())[0].index(EOS) in (2, 3)
    )
    harness = Harness(limits(), perfect(6))
    harness.add("a", prompt, max_tokens=60)
    harness.run()
    assert harness.tokens["a"][-1] == EOS
    assert harness.ended == {"a": FinishReason.STOP}


def test_drafts_are_given_up_before_another_request_is_preempted() -> None:
    harness = Harness(limits(num_blocks=6, eos_token_id=None), perfect(6))
    harness.add("first", text(7), max_tokens=9)
    harness.add("second", text(7, 1), max_tokens=2)
    harness.step()
    harness.step()
    # The drafts would need two blocks more, and one is free; one token has room.
    assert parts(harness) == [("first", 7, 1), ("second", 7, 1)]
    assert harness.scheduler.counters.preemptions == 0
    harness.run()


def test_a_preempted_request_forgets_its_drafts() -> None:
    harness = preempting(drafts=2)
    while not harness.requests["second"].num_preemptions:
        harness.step()
    assert harness.requests["second"].draft_token_ids == []
    harness.run()
