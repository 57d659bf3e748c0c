"""Engines with an FP8 KV cache make what a loop makes that rounds keys and values in that way."""

from __future__ import annotations

from typing import Any

import pytest

from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from sample_engine.errors import BackendUnavailableError
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    config_of,
    generate,
    make_core,
    plain_tokens,
)
from tests.engine.support.graphs import SoftwareExecution
from tests.engine.support.speculation import EAGLE, NGRAM

FP8 = {"kv_cache_dtype": "fp8"}


def _expected(folder: str, params: Any = None, *, fp8_cache: bool = True) -> dict[str, list[int]]:
    return {
        name: plain_tokens(folder, prompt, COUNT, params, fp8_cache=fp8_cache)
        for name, prompt in PROMPTS.items()
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention_backend": "sdpa"},
        {"attention_backend": "lazy_plan"},
        {"max_num_batched_tokens": 8, "num_blocks": 24},
        {"async_scheduling": True},
        {"speculative_config": NGRAM},
        {"speculative_config": EAGLE, "attention_backend": "sdpa"},
    ],
    ids=["reference", "sdpa", "lazy_plan", "chunks and few blocks", "async", "ngram", "eagle"],
)
def test_tokens_are_those_of_rounded_keys_and_values(folder: str, settings: dict[str, Any]) -> None:
    assert generate(make_core(folder, **FP8, **settings), PROMPTS, GREEDY) == _expected(folder)


def test_sampled_tokens_are_those_of_rounded_keys_and_values(folder: str) -> None:
    core = make_core(folder, kv_cache_dtype="fp8_e4m3")
    assert generate(core, PROMPTS, SAMPLED) == _expected(folder, SAMPLED)


def test_rounding_makes_a_difference_that_a_test_can_see(folder: str) -> None:
    assert _expected(folder) != _expected(folder, fp8_cache=False)


@pytest.mark.parametrize("backend", ["reference", "lazy_plan"])
def test_a_graph_holds_the_rounding(folder: str, backend: str) -> None:
    config = config_of(
        folder, **FP8, attention_backend=backend, max_model_len=64,
        cudagraph_mode=CUDAGraphMode.FULL, cudagraph_capture_sizes=(1, 3, 8),
    )  # fmt: skip
    assert generate(EngineCore(config, SoftwareExecution()), PROMPTS, GREEDY) == _expected(folder)


def test_an_engine_says_how_it_keeps_keys_and_values(folder: str) -> None:
    assert make_core(folder).info()["kv_cache_dtype"] == "float32"
    assert make_core(folder, **FP8).info()["kv_cache_dtype"] == "fp8_e4m3"


def test_a_backend_that_cannot_read_it_is_refused(folder: str) -> None:
    with pytest.raises(BackendUnavailableError, match="it cannot read an FP8 KV cache"):
        make_core(folder, **FP8, attention_backend="flash")
