"""How requests end in a core, which are refused, and what a core tells of itself."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.engine_core import EngineCore
from sample_engine.errors import ConfigError, EngineDeadError, PromptError
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    MODEL_LEN,
    PROMPTS,
    VOCAB,
    generate,
    make_core,
    model_folder,
    plain_tokens,
    run,
)


@pytest.fixture(scope="module")
def expected(folder: str) -> dict[str, list[int]]:
    """What the prompts of these tests are continued with, by a plain loop."""
    names = ("own-4", "own-8", "own-15", "own-33")
    return {name: plain_tokens(folder, PROMPTS[name], COUNT) for name in names}


def test_a_request_ends_at_the_end_of_text_token(
    tmp_path: Path, folder: str, expected: dict[str, list[int]]
) -> None:
    tokens = expected["own-8"]
    end = tokens[5]
    core = make_core(model_folder(tmp_path / "model", eos_token_id=end))
    core.add_request("a", PROMPTS["own-8"], GREEDY)
    core.add_request("b", PROMPTS["own-8"], SamplingParams(max_tokens=COUNT, ignore_eos=True))
    made, last = run(core)
    assert made["a"] == tokens[: tokens.index(end) + 1]
    assert made["b"] == tokens
    assert last["a"].finish_reason is FinishReason.STOP
    assert last["b"].finish_reason is FinishReason.LENGTH


def test_a_request_ends_where_the_context_ends(folder: str) -> None:
    core = make_core(folder)
    core.add_request("a", [1] * (MODEL_LEN - 3), SamplingParams(max_tokens=100))
    made, last = run(core)
    assert len(made["a"]) == 3
    assert last["a"].finish_reason is FinishReason.LENGTH


def test_a_request_that_outgrows_the_cache_ends_with_words_and_others_go_on(
    folder: str, expected: dict[str, list[int]]
) -> None:
    core = make_core(folder, num_blocks=8)
    core.add_request("large", [1] * 20, SamplingParams(max_tokens=100))
    core.add_request("small", PROMPTS["own-4"], GREEDY)
    made, last = run(core)
    assert last["large"].finish_reason is FinishReason.ERROR
    assert "The whole KV cache holds 28 (7 blocks of 4)" in str(last["large"].error)
    assert len(made["large"]) == 9
    assert made["small"] == expected["own-4"]


def test_an_aborted_request_says_nothing_more_and_others_go_on(
    folder: str, expected: dict[str, list[int]]
) -> None:
    core = make_core(folder)
    for name, prompt in PROMPTS.items():
        core.add_request(name, prompt, GREEDY)
    core.step()
    core.abort(["own-1", "alike-0", "never there"])
    made, _ = run(core)
    assert "own-1" not in made
    assert made["own-33"] == expected["own-33"]
    assert core.metrics()["free_blocks"] == 199


def test_more_requests_than_blocks_wait_for_each_other(
    folder: str, expected: dict[str, list[int]]
) -> None:
    core = make_core(folder, num_blocks=13)
    for number in range(30):
        core.add_request(f"r{number}", PROMPTS["own-15"], GREEDY)
    made, _ = run(core)
    assert all(made[f"r{number}"] == expected["own-15"] for number in range(30))


# What is refused


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty prompt"),
        ([1] * MODEL_LEN, f"prompt of {MODEL_LEN} tokens, but with max_model_len={MODEL_LEN}"),
        ([1] * 50, "The whole KV cache holds 48"),
        ([1, VOCAB, 2], f"has the token {VOCAB}, but the vocabulary goes from 0 to {VOCAB - 1}"),
        ([1, -1], "has the token -1"),
        ([1, 2.5], "must be whole numbers: 'float' object"),
        ("text", "must be whole numbers: 'str' object"),
    ],
)
def test_a_prompt_that_can_never_run_is_refused_with_words(
    folder: str, expected: dict[str, list[int]], prompt: Any, words: str
) -> None:
    core = make_core(folder, num_blocks=13)
    with pytest.raises(PromptError, match="Request 'wrong'") as caught:
        core.add_request("wrong", prompt, GREEDY)
    assert words in str(caught.value)
    assert not core.has_unfinished()
    assert generate(core, {"own-4": PROMPTS["own-4"]}, GREEDY)["own-4"] == (expected["own-4"])


def test_an_id_that_is_in_use_is_refused_and_its_request_goes_on(
    folder: str, expected: dict[str, list[int]]
) -> None:
    core = make_core(folder)
    core.add_request("own-4", PROMPTS["own-4"], GREEDY)
    with pytest.raises(PromptError, match="'own-4' is in use"):
        core.add_request("own-4", PROMPTS["own-8"], GREEDY)
    assert run(core)[0]["own-4"] == expected["own-4"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 1000}, "max_model_len=1000 is more than the model was trained for"),
        ({"device": "tpu"}, "device='tpu' is not one of auto, cpu, cuda"),
        ({"device": "cuda:99"}, "device='cuda:99' is asked for, but"),
        ({"attention_backend": "nonsense"}, "attention_backend='nonsense' is not known"),
        (
            {"speculative_config": {"method": "ngram"}},
            "speculative_config needs 'num_speculative_tokens'",
        ),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_loaded(
    folder: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_core(folder, **settings)
    assert words in str(caught.value)


# Seeds


def test_requests_without_a_seed_differ_and_the_engines_seed_repeats_them(folder: str) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=COUNT)
    same_prompt = {f"r{number}": PROMPTS["own-8"] for number in range(4)}
    first = generate(make_core(folder, seed=0), same_prompt, params)
    again = generate(make_core(folder, seed=0, max_num_batched_tokens=3), same_prompt, params)
    assert first == again
    assert len({tuple(tokens) for tokens in first.values()}) == 4


@pytest.mark.parametrize("seed", [-2, -(2**63), 2**63, 2**64 - 1])
def test_any_seed_of_the_range_is_one(folder: str, seed: int) -> None:
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=3)
    core = make_core(folder)
    made = generate(core, {"a": [1, 2], "b": [1, 2]}, params)
    assert made["a"] == made["b"]


# The core itself


def test_a_core_tells_what_its_configuration_came_to(folder: str) -> None:
    core = make_core(folder)
    assert core.info() == {
        "model": folder,
        "backend": "reference",
        "speculator": None,
        "speculative_config": None,
        "num_speculative_tokens": 0,
        "kv_connector": None,
        "kv_role": None,
        "device": "cpu",
        "tensor_parallel_size": 1,
        "sums_over_ranks": None,
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "num_blocks": 200,
        "block_size": 4,
        "cudagraph_mode": "NONE",
        "async_scheduling": False,
        "max_model_len": MODEL_LEN,
        "vocab_size": VOCAB,
        "eos_token_id": None,
    }


def test_metrics_count_what_happened(folder: str) -> None:
    core = make_core(folder)
    generate(core, {"a": [1] * 5, "b": [2] * 7}, GREEDY)
    metrics = core.metrics()
    assert metrics["steps"] == COUNT
    assert metrics["scheduled_tokens"] == 5 + 7 + 2 * (COUNT - 1)
    assert metrics["generated_tokens"] == 2 * COUNT
    assert metrics["finished_requests"] == 2
    assert metrics["running_requests"] == metrics["waiting_requests"] == 0


def test_an_idle_core_says_nothing(folder: str) -> None:
    core = make_core(folder)
    assert not core.has_unfinished()
    assert core.step() == []


def test_shutdown_lets_go_of_the_model_and_may_be_repeated(folder: str) -> None:
    core: EngineCore = make_core(folder)
    core.add_request("a", [1, 2], GREEDY)
    core.step()
    runner = weakref.ref(core.runner)
    core.shutdown()
    core.shutdown()
    gc.collect()
    assert runner() is None
    assert not core.has_unfinished()
    with pytest.raises(EngineDeadError, match="has been shut down"):
        core.step()
