"""Engines that share KV blocks: the same tokens, less to compute, and no harm in failing stores."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sample_engine import LLM, EngineDeadError, SamplingParams
from sample_engine.batch.request import FinishReason
from sample_engine.engine_core import EngineCore
from sample_engine.errors import KVTransferError
from tests.engine.support.engine import COUNT, GREEDY, PROMPTS, SAMPLED, generate, make_core
from tests.engine.support.kv_transfer import needs_redis, redis_on_a_socket, shared_memory

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
EAGLE = {"method": "eagle", "num_speculative_tokens": 1}
LONG = {"own-33": PROMPTS["own-33"]}
FULL = 32  # tokens of its full blocks


@pytest.fixture
def shm() -> Iterator[str]:
    """A folder of its own in the shared memory, which must be empty again at the end."""
    with shared_memory() as path:
        yield path


def sharing(shm: str, role: str = "kv_both", **config: Any) -> dict[str, Any]:
    return {"kv_role": role, "kv_connector_extra_config": {"directory": shm}, **config}


def run_core(core: EngineCore, prompts: Any, params: SamplingParams) -> dict[str, list[int]]:
    try:
        return generate(core, prompts, params)
    finally:
        core.shutdown()


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ({}, SAMPLED),
        ({"max_num_batched_tokens": 8}, GREEDY),
        ({"num_blocks": 24}, GREEDY),
        ({"speculative_config": NGRAM}, GREEDY),
        ({"speculative_config": EAGLE}, SAMPLED),
        ({"async_scheduling": True, "num_blocks": 24}, SAMPLED),
        ({"kv_cache_dtype": "fp8", "speculative_config": EAGLE}, GREEDY),
    ],
    ids=["sampled", "chunks", "few blocks", "ngram", "eagle", "async", "fp8"],
)
def test_tokens_are_the_same_with_and_without(
    folder: str, shm: str, settings: dict[str, Any], params: SamplingParams
) -> None:
    alone = run_core(make_core(folder, **settings), PROMPTS, params)
    # The store lives as long as its last user.
    one = make_core(folder, **settings, kv_transfer_config=sharing(shm))
    two = make_core(folder, **settings, kv_transfer_config=sharing(shm))
    computed = []
    for core in (one, two):
        assert generate(core, PROMPTS, params) == alone
        computed.append(core.metrics()["scheduled_tokens"])
    found = two.metrics()
    assert found["external_cached_tokens"] > 0
    assert computed[1] < computed[0]
    assert found["kv_transfer"]["loaded_blocks"] * 4 == found["external_cached_tokens"]
    one.shutdown()
    two.shutdown()


def test_a_consumer_computes_what_is_missing_and_nothing_else(folder: str, shm: str) -> None:
    producer = make_core(folder, kv_transfer_config=sharing(shm, "kv_producer"))
    consumer = make_core(folder, kv_transfer_config=sharing(shm, "kv_consumer"))
    expected = generate(producer, LONG, GREEDY)
    assert generate(consumer, LONG, GREEDY) == expected
    whole = 33 + COUNT - 1  # of the last token nothing is computed
    made, fetched = producer.metrics(), consumer.metrics()
    assert made["scheduled_tokens"] == whole
    assert made["kv_transfer"]["saved_blocks"] == whole // 4
    assert made["external_queried_tokens"] == 0
    assert fetched["scheduled_tokens"] == whole - FULL
    assert fetched["external_queried_tokens"] == fetched["external_cached_tokens"] == FULL
    assert fetched["kv_transfer"]["saved_blocks"] == 0
    assert (consumer.info()["kv_connector"], consumer.info()["kv_role"]) == (
        "SharedMemoryConnector",
        "kv_consumer",
    )
    producer.shutdown()
    again = make_core(folder, kv_transfer_config=sharing(shm))
    generate(again, LONG, GREEDY)
    assert again.metrics()["external_cached_tokens"] == FULL, "the consumer kept the store"
    again.shutdown()
    consumer.shutdown()


def test_engines_that_differ_share_nothing(folder: str, shm: str) -> None:
    others: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "fp8"},
        {"block_size": 8},
        {"load_format": "dummy", "seed": 5},
        {"speculative_config": EAGLE},
    ]
    producer = make_core(folder, kv_transfer_config=sharing(shm))
    generate(producer, LONG, GREEDY)
    for settings in others:
        other = make_core(folder, **settings, kv_transfer_config=sharing(shm))
        generate(other, LONG, GREEDY)
        found = other.metrics()
        assert found["external_queried_tokens"] > 0, settings
        assert found["external_cached_tokens"] == 0, settings
        other.shutdown()
    producer.shutdown()


def test_a_store_that_is_too_small_evicts_and_does_no_harm(folder: str, shm: str) -> None:
    alone = run_core(make_core(folder), PROMPTS, GREEDY)
    config = sharing(shm)
    config["kv_connector_extra_config"]["max_bytes"] = 8000
    core = make_core(folder, kv_transfer_config=config)
    other = make_core(folder, kv_transfer_config=config)
    assert generate(core, PROMPTS, GREEDY) == alone
    assert generate(other, PROMPTS, GREEDY) == alone
    found = core.metrics()["kv_transfer"]
    assert found["evicted_blocks"] > 0
    assert found["store_bytes"] <= 8000
    core.shutdown()
    other.shutdown()


@needs_redis
def test_through_redis_and_when_it_goes_away(folder: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"kv_connector": "RedisConnector", "kv_connector_extra_config": {}}
    extra = config["kv_connector_extra_config"]
    extra["timeout_seconds"] = 60.0
    with redis_on_a_socket(tmp_path) as extra["url"]:
        one = make_core(folder, kv_transfer_config=config)
        two = make_core(folder, kv_transfer_config=config)
        must = make_core(folder, kv_transfer_config={**config, "kv_load_failure_policy": "fail"})
        expected = generate(one, LONG, GREEDY)
        assert generate(two, LONG, GREEDY) == expected
        assert two.metrics()["external_cached_tokens"] == FULL
    other = {"own-15": PROMPTS["own-15"]}
    alone = run_core(make_core(folder), other, GREEDY)
    assert generate(two, other, GREEDY) == alone
    found = two.metrics()["kv_transfer"]
    assert found["not_fetching"].startswith(f"the Redis server {extra['url']} sends no block: ")
    assert found["not_storing"].startswith(f"the Redis server {extra['url']} takes no block: ")
    must.add_request("r", PROMPTS["own-15"], GREEDY)
    (output,) = must.step()
    assert output.finish_reason is FinishReason.ERROR
    assert "Request 'r': KV blocks cannot be fetched: the Redis server" in str(output.error)
    assert not must.has_unfinished()
    with pytest.raises(KVTransferError, match="KV blocks cannot be fetched"):
        make_core(folder, kv_transfer_config={**config, "kv_load_failure_policy": "fail"})
    late = make_core(folder, kv_transfer_config=config)
    assert run_core(late, other, GREEDY) == alone
    for core in (one, two, must):
        core.shutdown()


def test_cores_in_processes_share_and_a_killed_one_leaves_nothing(folder: str, shm: str) -> None:
    """By fork, which is quick here; the other start methods are those of the demo's tests."""
    settings: dict[str, Any] = {
        "model": folder,
        "device": "cpu",
        "block_size": 4,
        "num_blocks": 50,
        "worker_method": "fork",
        "kv_transfer_config": sharing(shm),
    }
    prompt = {"prompt_token_ids": PROMPTS["own-33"]}
    with LLM(**settings) as one:
        (expected,) = one.generate(prompt, GREEDY)
        two = LLM(**settings)
        (found,) = two.generate(prompt, GREEDY)
        assert found.token_ids == expected.token_ids
        assert found.num_cached_tokens == FULL
        assert two.metrics()["kv_transfer"]["loaded_blocks"] == FULL // 4
        os.kill(two.info()["core_pid"], signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            two.generate(prompt, GREEDY)
        assert one.generate(prompt, GREEDY)[0].token_ids == expected.token_ids
        os.kill(one.info()["core_pid"], signal.SIGKILL)
    # The fixture waits until the janitor has removed what the two left.
