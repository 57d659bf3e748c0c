"""Settings are refused before anything is made of them, by name and with the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sample_engine.attention.interface import AttentionSpec
from sample_engine.config import EngineConfig
from sample_engine.errors import ConfigError
from sample_engine.kv_cache.memory import allocate_caches


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
        ("kv_cache_dtype", "fp8_e5m2", "is not one of 'auto', 'fp8', 'fp8_e4m3'"),
        ("kv_cache_dtype", None, "is not one of 'auto', 'fp8', 'fp8_e4m3'"),
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
