"""Values that a caller gives: what is wrong is refused at once, by name and with its rule."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from sample_engine.attention.interface import AttentionSpec
from sample_engine.batch.request import SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.errors import ConfigError, PromptError
from sample_engine.kv_cache.memory import allocate_caches

SEED = "must be a whole number from -2^63 to 2^64 - 1, or None"
STOP = "must be a str or several, none of them empty, each with UTF-8"
TEMPERATURE = "must be a number of 0 or more"
TOP_P = "must be a number above 0 and at most 1"
TOP_K = "must be 0 (all tokens) or more, and a whole number below 2^63"
MAX_TOKENS = "must be at least 1, and a whole number below 2^63"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("temperature", -0.5, TEMPERATURE),
        ("temperature", True, TEMPERATURE),
        ("temperature", "1", TEMPERATURE),
        ("temperature", None, TEMPERATURE),
        ("temperature", float("nan"), TEMPERATURE),
        ("temperature", 10**400, TEMPERATURE),
        ("top_k", -1, TOP_K),
        ("top_k", 1.5, TOP_K),
        ("top_k", False, TOP_K),
        ("top_k", 10**30, TOP_K),
        ("top_p", 0, TOP_P),
        ("top_p", 1.5, TOP_P),
        ("top_p", True, TOP_P),
        ("top_p", None, TOP_P),
        ("seed", "1", SEED),
        ("seed", 1.0, SEED),
        ("seed", True, SEED),
        ("seed", 2**64, SEED),
        ("seed", -(2**63) - 1, SEED),
        ("stop", [1], STOP),
        ("stop", b"x", STOP),
        ("stop", None, STOP),
        ("stop", 5, STOP),
        ("stop", {"a": 1}, STOP),
        ("stop", "", STOP),
        ("stop", ["a", "\ud800"], STOP),
        ("max_tokens", 0, MAX_TOKENS),
        ("max_tokens", 1.5, MAX_TOKENS),
        ("max_tokens", None, MAX_TOKENS),
        ("max_tokens", 10**20, MAX_TOKENS),
        ("ignore_eos", "no", "must be True or False"),
        ("ignore_eos", 1, "must be True or False"),
    ],
)
def test_a_sampling_parameter_is_refused_when_it_is_given(name: str, value: Any, rule: str) -> None:
    shown = value
    if name == "stop" and isinstance(value, (str, list)):
        shown = (value,) if isinstance(value, str) else tuple(value)
    with pytest.raises(PromptError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == f"SamplingParams: {name}={shown!r} {rule}."


def test_all_that_is_wrong_with_sampling_parameters_is_said_at_once() -> None:
    with pytest.raises(PromptError, match=r"top_k=-1 .*\n.*top_p=2 .*"):
        SamplingParams(top_k=-1, top_p=2)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": float("inf")},
        {"top_k": 2**63 - 1, "top_p": 1},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"max_tokens": 2**63 - 1},
        {"stop": ["a", "é"]},
        {"stop": []},
    ],
    ids=str,
)
def test_values_at_the_ends_of_their_ranges_are_taken(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    for name, value in values.items():
        assert getattr(params, name) == (tuple(value) if name == "stop" else value)


def test_an_unknown_sampling_parameter_is_refused_with_the_closest_name() -> None:
    with pytest.raises(TypeError, match=r"'temprature'\. Did you mean 'temperature'\? It has: ig"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"has no parameter 'xyzzy'\. It has: ignore_eos, max_tok"):
        SamplingParams(xyzzy=1)  # type: ignore[call-arg]


def test_sampling_parameters_stay_a_plain_dataclass() -> None:
    params = SamplingParams(top_k=3, stop=("end",))
    assert pickle.loads(pickle.dumps(params)) == copy.copy(params) == params
    assert dataclasses.replace(params, top_k=4).stop == ("end",)
    names = list(inspect.signature(SamplingParams).parameters)
    assert names == [field.name for field in dataclasses.fields(SamplingParams)]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("model", None, "must be a str"),
        ("model", 5, "must be a str"),
        ("model", b"tiny", "must be a str"),
        ("device", None, "must be a str"),
        ("device", 0, "must be a str"),
        ("device", "cuda:x", "is not one of auto, cpu, cuda, cuda:0"),
        ("device", "cuda:\u00b2", "is not one of auto, cpu, cuda, cuda:0"),
        ("attention_backend", None, "must be a str"),
        ("gpu_memory_utilization", "0.5", "must be a number that lies above 0"),
        ("gpu_memory_utilization", True, "must be a number that lies above 0"),
        ("gpu_memory_utilization", 1.1, "must be a number that lies above 0"),
        ("enable_chunked_prefill", "yes", "must be True or False"),
        ("enable_prefix_caching", None, "must be True or False"),
        ("seed", "a", "must be a whole number of at least -9223372036854775808"),
        ("seed", None, "must be a whole number"),
        ("seed", 2**100, "and at most 18446744073709551615"),
        ("block_size", "16", "must be a whole number of at least 1"),
        ("block_size", 24, "must be a power of two"),
        ("block_size", 2**40, "and at most 65536"),
        ("num_blocks", 10**12, "and at most 2147483647, or None"),
        ("num_blocks", True, "must be a whole number of at least 2"),
        ("max_model_len", 1.5, "must be a whole number of at least 1"),
        ("max_num_seqs", 10**9, "and at most 65536"),
        ("max_num_batched_tokens", 10**10, "and at most 16777216"),
        ("speculative_config", "ngram", "must be a dict, for instance"),
        ("speculative_config", [], "must be a dict"),
        ("cudagraph_capture_sizes", 5, "must be a list of whole numbers of at least 1, or None"),
        ("cudagraph_capture_sizes", {1, 2}, "must be a list of whole numbers"),
        ("cudagraph_capture_sizes", iter([1]), "must be a list of whole numbers"),
        ("cudagraph_mode", "full", "Did you mean 'FULL'?"),
        ("cudagraph_mode", None, "is not one of 'NONE', 'PIECEWISE'"),
        ("dtype", [], "is not one of 'auto', 'float32'"),
        ("worker_method", [], "is not one of 'auto'"),
    ],
)
def test_a_setting_of_another_type_or_out_of_range_is_refused(
    name: str, value: Any, rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.of(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} ")
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_may_be_given_as_a_path(tmp_path: Path) -> None:
    assert EngineConfig.of(model=tmp_path).model == str(tmp_path)


def test_a_cache_that_no_memory_holds_is_refused_before_it_is_made() -> None:
    spec = AttentionSpec(
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        block_size=1 << 16,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    with pytest.raises(ConfigError) as caught:
        allocate_caches(spec, 8, 10**6)
    text = str(caught.value)
    assert text.startswith("num_blocks=1000000 with block_size=65536 is too large: keys and values")
    assert "take 250000.0 GiB, and on cpu" in text
