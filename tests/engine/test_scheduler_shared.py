"""The scheduler with blocks of other engines: what it computes, counts and refuses."""

from __future__ import annotations

from typing import Any

from sample_engine.batch.request import FinishReason
from tests.engine.support.scheduler import Harness, limits, parts, text

PROMPT = text(30)  # 7 full blocks of 4, of which none begins with a hash that the store forgets


def producer(**changed: Any) -> dict[bytes, list[int]]:
    """The blocks that an engine has stored of the prompt."""
    shared: dict[bytes, list[int]] = {}
    one = Harness(limits(**changed), shared=shared)
    one.add("r", PROMPT, max_tokens=2)
    one.run()
    return shared


def consumer(shared: dict[bytes, list[int]], **changed: Any) -> Harness:
    made = Harness(limits(**changed), shared=shared)
    made.add("r", PROMPT, max_tokens=4)
    return made


def test_a_consumer_computes_only_what_is_not_stored() -> None:
    shared = producer()
    assert len(shared) == 7
    harness = consumer(shared)
    harness.step()
    assert harness.store is not None
    loaded = harness.store.loaded
    assert loaded >= 1
    assert parts(harness) == [("r", 4 * loaded, 30 - 4 * loaded)]
    harness.run()
    counters = harness.scheduler.counters
    assert counters.external_queried_tokens == 28
    assert counters.external_cached_tokens == 4 * loaded
    assert counters.prefix_cached_tokens == 0
    assert counters.scheduled_tokens == 33 - 4 * loaded
    assert harness.requests["r"].num_cached_tokens == 4 * loaded


def test_what_is_found_here_is_not_asked_for() -> None:
    harness = consumer(producer())
    harness.run()
    assert harness.store is not None
    before = harness.store.loaded
    harness.add("again", PROMPT, max_tokens=2)
    harness.run()
    assert harness.store.loaded == before
    assert harness.requests["again"].num_cached_tokens == 28


def test_a_block_is_given_away_once_and_what_came_from_elsewhere_never() -> None:
    shared = producer()
    harness = consumer(shared)
    harness.scheduler.schedule()
    assert harness.scheduler.kv.take_computed() == []
    other = Harness(limits(), shared={})
    other.add("r", PROMPT, max_tokens=2)
    other.add("copy", PROMPT, max_tokens=2)
    batch = other.scheduler.schedule()
    other.scheduler.postprocess(batch, other.model.run(batch))
    while other.scheduler.has_unfinished():
        batch = other.scheduler.schedule()
        other.scheduler.postprocess(batch, other.model.run(batch))
    found = [each for each, _ in other.scheduler.kv.take_computed()]
    assert sorted(found) == sorted(shared)
    assert other.scheduler.kv.take_computed() == []


def test_a_store_that_fails_ends_the_request_if_that_is_wished() -> None:
    harness = consumer({})
    assert harness.store is not None
    harness.store.error = "the store is away"
    assert harness.scheduler.schedule().requests == ()
    (output,) = harness.scheduler.postprocess(
        harness.last_batch, harness.model.run(harness.last_batch)
    )
    assert output.finish_reason is FinishReason.ERROR
    assert output.error == "Request 'r': the store is away"
    assert output.error_type == "KVTransferError"
    assert not harness.scheduler.has_unfinished()
    assert harness.scheduler.kv.pool.num_free == harness.limits.num_blocks - 1
    harness.store.error = None
    harness.ended["r"] = FinishReason.ERROR
    harness.add("next", PROMPT, max_tokens=4)
    while harness.scheduler.has_unfinished():
        harness.step()
    assert harness.ended["next"] is not FinishReason.ERROR


def test_who_only_stores_is_not_asked() -> None:
    harness = consumer(producer())
    assert harness.store is not None
    harness.store.fetches = False
    harness.run()
    assert harness.store.loaded == 0
    assert harness.scheduler.counters.external_queried_tokens == 0


def test_nothing_is_asked_of_a_prompt_without_a_full_block() -> None:
    harness = Harness(limits(), shared={})
    assert harness.store is not None
    harness.store.error = "nobody asks"
    harness.add("r", PROMPT[:4], max_tokens=1)
    harness.run()
    assert harness.ended["r"] is FinishReason.LENGTH
