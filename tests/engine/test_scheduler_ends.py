"""How requests end, and which are refused from the beginning."""

from __future__ import annotations

import pytest

from sample_engine.batch.request import FinishReason
from sample_engine.batch.scheduled_batch import StepResult
from sample_engine.errors import PromptError
from tests.engine.support.scheduler import EOS, Harness, limits, text


def test_the_end_of_text_token_ends_a_request_unless_it_is_to_be_ignored() -> None:
    harness = Harness(limits())
    for name, ignore in (("a", False), ("b", True)):
        harness.add(name, text(5), max_tokens=50, ignore_eos=ignore)
    harness.run()
    assert harness.ended == {"a": FinishReason.STOP, "b": FinishReason.LENGTH}
    assert harness.tokens["a"][-1] == EOS
    assert harness.tokens["b"][: len(harness.tokens["a"])] == harness.tokens["a"]


def test_a_request_ends_where_the_context_ends() -> None:
    harness = Harness(limits(max_model_len=10))
    harness.add("a", text(7), max_tokens=50, ignore_eos=True)
    harness.run()
    assert len(harness.tokens["a"]) == 3
    assert harness.ended == {"a": FinishReason.LENGTH}


def test_a_request_that_outgrows_the_whole_cache_ends_with_words_and_keeps_its_tokens() -> None:
    harness = Harness(limits(num_blocks=4))
    harness.add("a", text(9), max_tokens=50, ignore_eos=True)
    last = harness.step()
    while harness.scheduler.has_unfinished():
        last = harness.step()
    (output,) = last
    assert output.finish_reason is FinishReason.ERROR
    assert output.error is not None
    assert "has grown to 13 tokens. The whole KV cache holds 12 (3 blocks of 4)" in output.error
    assert len(harness.tokens["a"]) == 4


def test_a_request_that_outgrows_the_cache_takes_nobody_elses_blocks() -> None:
    harness = Harness(limits(num_blocks=4, enable_prefix_caching=False))
    harness.add("a", text(8), max_tokens=50, ignore_eos=True)
    harness.add("b", text(2), max_tokens=3, ignore_eos=True)
    harness.run()
    assert harness.ended == {"b": FinishReason.LENGTH, "a": FinishReason.ERROR}


def test_an_aborted_request_is_gone_at_once_running_or_waiting() -> None:
    harness = Harness(limits(max_num_seqs=1))
    for name in "abc":
        harness.add(name, text(5), max_tokens=9)
    harness.step()
    harness.abort("a")
    harness.abort("c")
    assert harness.requests["a"].finish_reason is FinishReason.ABORT
    assert [output.request_id for output in harness.step()] == ["b"]
    harness.run()


def test_those_that_wait_are_not_gone_through_when_one_that_runs_is_aborted() -> None:
    """As every text with a stop string is, in the end: with 100,000 that wait it took 13 ms."""
    harness = Harness(limits(max_num_seqs=1))
    for name in "abc":
        harness.add(name, text(5), max_tokens=9)
    harness.step()
    waiting = harness.scheduler.waiting
    harness.abort("a")
    assert harness.scheduler.waiting is waiting
    assert not harness.scheduler.running
    harness.abort("b")
    assert [request.request_id for request in harness.scheduler.waiting] == ["c"]


def test_aborting_an_unknown_or_ended_request_is_harmless() -> None:
    harness = Harness(limits())
    harness.add("a", text(5), max_tokens=1)
    harness.run()
    harness.abort("a")
    harness.abort("never there")
    assert harness.step() == []
    assert harness.scheduler.counters.finished_requests == 1


def test_a_request_aborted_during_a_step_gets_nothing_of_it() -> None:
    harness = Harness(limits())
    for name in "ab":
        harness.add(name, text(5), max_tokens=9, ignore_eos=True)
    batch = harness.scheduler.schedule()
    result = harness.model.run(batch)
    harness.abort("a")
    outputs = harness.scheduler.postprocess(batch, result)
    assert [output.request_id for output in outputs] == ["b"]
    assert harness.requests["a"].output_token_ids == []


def test_an_idle_scheduler_has_nothing_to_do() -> None:
    harness = Harness(limits())
    assert not harness.scheduler.has_unfinished()
    assert harness.scheduler.postprocess(harness.scheduler.schedule(), StepResult((), ())) == []
    assert harness.scheduler.metrics()["steps"] == 0


# What is refused


@pytest.mark.parametrize(
    ("changed", "length", "words"),
    [
        ({}, 0, "empty prompt: at least one token"),
        ({}, 64, "prompt of 64 tokens, but with max_model_len=64 at most 63 leave room"),
        ({"num_blocks": 3}, 9, "prompt of 9 tokens. The whole KV cache holds 8 (2 blocks of 4)"),
        (
            {"enable_chunked_prefill": False},
            33,
            "prompt of 33 tokens, more than max_num_batched_tokens=32: raise it, or set",
        ),
    ],
)
def test_a_prompt_that_can_never_run_is_refused_with_words(
    changed: dict[str, int], length: int, words: str
) -> None:
    harness = Harness(limits(**changed))
    refused = harness.try_add("a", text(length))
    assert refused is not None
    assert words in refused
    assert not harness.scheduler.has_unfinished()
    assert harness.try_add("a", text(min(length, 8) - 1 if length else 1)) is None
    harness.run()


def test_the_largest_prompt_that_fits_the_cache_gets_a_token() -> None:
    harness = Harness(limits(num_blocks=3))
    harness.add("a", text(8), max_tokens=1)
    harness.run()
    assert len(harness.tokens["a"]) == 1


def test_an_id_is_refused_while_it_is_in_use_and_free_afterwards() -> None:
    harness = Harness(limits())
    harness.add("a", text(5), max_tokens=1)
    with pytest.raises(PromptError, match="'a' is in use by a request that has not finished"):
        harness.add("a", text(5))
    harness.run()
    assert harness.scheduler.has_unfinished() is False
    harness.ended.clear()
    harness.add("a", text(5), max_tokens=1)
    harness.run()
