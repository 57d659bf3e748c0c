"""Which requests the scheduler computes next: batches, chunks, preemption, prefixes, drafts."""

from __future__ import annotations

from collections.abc import Sequence

from sample_engine.batch.request import FinishReason, RequestStatus
from sample_engine.batch.sampling_params import SamplingParams
from tests.engine.support.programs import run_python
from tests.engine.support.scheduler import (
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
    assert run_python(code).returncode == 0


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


def test_drafts_are_not_cut_to_the_blocks_that_are_free() -> None:
    harness = Harness(limits(num_blocks=6, eos_token_id=None), perfect(6))
    harness.add("first", text(7), max_tokens=9)
    harness.add("second", text(7, 1), max_tokens=2)
    harness.step()
    harness.step()
    # The drafts need two blocks more, and one is free.
    assert parts(harness) == [("first", 7, 7)]
    assert harness.requests["second"].num_preemptions == 1
    harness.run()


def test_drafts_that_do_not_fit_into_a_step_wait_for_the_next_one() -> None:
    harness = Harness(limits(eos_token_id=None, max_num_batched_tokens=7), perfect(3))
    for name in "ab":
        harness.add(name, text(3), max_tokens=20)
    harness.step()
    harness.step()
    assert parts(harness) == [("a", 3, 4)], "of b's four tokens three would fit"
    assert len(harness.requests["b"].draft_token_ids) == 3
    harness.run()


def test_a_preempted_request_keeps_its_drafts_and_verifies_them_when_it_comes_again() -> None:
    harness = preempting(drafts=2)
    while not harness.requests["second"].num_preemptions:
        harness.step()
    second = harness.requests["second"]
    drafts = list(second.draft_token_ids)
    assert drafts
    while second.status is RequestStatus.PREEMPTED:
        harness.step()
    (part,) = (p for p in harness.last_batch.requests if p.request is second)
    assert (part.start, part.num_drafts) == (0, len(drafts))
    harness.run()


def test_a_request_that_comes_again_in_chunks_keeps_its_drafts_to_the_last_of_them() -> None:
    harness = Harness(
        limits(
            num_blocks=8, max_num_batched_tokens=8, enable_prefix_caching=False, eos_token_id=None
        ),
        perfect(2),
    )
    harness.add("first", text(8), max_tokens=12)
    harness.add("second", text(7, 1), max_tokens=12)
    while not harness.requests["second"].num_preemptions:
        harness.step()
    second, chunks = harness.requests["second"], []
    length = second.num_tokens
    while second.num_tokens == length:
        assert len(second.draft_token_ids) == 2
        harness.step()
        chunks += [p for p in harness.last_batch.requests if p.request is second]
    assert [part.num_drafts for part in chunks] == [0] * (len(chunks) - 1) + [2]
    assert len(chunks) == 2
    assert chunks[0].count == 7 < length, "all would fit, but the last token waits for the drafts"
    harness.run()


def test_blocks_are_there_for_what_a_speculator_writes_beyond_a_step() -> None:
    harness = Harness(limits(eos_token_id=None, lookahead=6), perfect(3))
    request = harness.add("a", text(5), max_tokens=30)
    harness.step()
    assert len(request.block_ids) == 3, "5 tokens and 6 beyond"
    harness.step()
    assert len(request.block_ids) == 4, "9 tokens and 6 beyond"
    harness.run()


def test_the_blocks_of_the_next_step_are_given_while_there_are_enough_for_all() -> None:
    few = limits(eos_token_id=None, lookahead=2, ahead=4, num_blocks=7)
    harness = Harness(few, perfect(3))
    request = harness.add("a", text(5), max_tokens=17)
    harness.step()
    assert len(request.block_ids) == 2, "5 tokens and 2 beyond: it has only begun"
    harness.step()
    assert len(request.block_ids) == 4, "9 tokens, 2 beyond, and 4 of the next step"
    harness.step()
    assert len(request.block_ids) == 5, "13 tokens, 2 beyond, and 4 of the next step"
    harness.step()
    assert len(request.block_ids) == 5, "17 tokens and 2 beyond: one is left for who needs it"
    harness.run()


def test_no_blocks_of_a_next_step_are_given_that_cannot_come() -> None:
    harness = Harness(limits(eos_token_id=None, ahead=20), perfect(3))
    request = harness.add("a", text(5), max_tokens=9)
    harness.step()
    harness.step()
    assert len(request.block_ids) == 4, "the last of 14 tokens is never computed"
    harness.run()


def test_no_blocks_are_given_beyond_the_last_token_that_can_be_computed() -> None:
    harness = Harness(limits(eos_token_id=None, lookahead=20), perfect(3))
    request = harness.add("a", text(5), max_tokens=5)
    harness.step()
    assert len(request.block_ids) == 3, "the last of 10 tokens is never computed"
    harness.run()


def test_where_blocks_depend_on_the_next_token_a_prefix_needs_it_in_common() -> None:
    """A draft head's keys at a block's last token are made of the token after it."""
    prompt = [0, 1, 2, 0, 1, 2, 0, 1]
    for sees_next, follows, found in (
        (False, 0, 8),
        (True, 0, 4),
        (False, 2, 8),
        (True, 2, 8),
    ):
        harness = Harness(limits(eos_token_id=None, sees_next_token=sees_next))
        harness.add("a", [*prompt, 2, 2], max_tokens=1)
        harness.run()
        again = harness.add("b", [*prompt, follows, 1, 1], max_tokens=1)
        harness.run()
        assert again.num_cached_tokens == found


def test_tokens_per_step_and_acceptance_are_counted_without_the_first_token() -> None:
    harness = Harness(limits(eos_token_id=None), perfect(3))
    harness.add("a", text(5), max_tokens=9)
    harness.run()
    metrics = harness.scheduler.metrics()
    assert (metrics["decode_steps"], metrics["decode_tokens"]) == (2, 8)
    assert metrics["tokens_per_step"] == 4.0
    assert metrics["acceptance_per_position"] == [1.0, 1.0, 1.0]
