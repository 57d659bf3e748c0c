"""Engines with an FP8 KV cache on a GPU: kernels beside the oracle, graphs, shared blocks."""

from __future__ import annotations

from typing import Any

import pytest

from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import GREEDY, PROMPTS, config_of, generate, model_folder
from tests.engine.support.kv_transfer import shared_memory

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    # Kernels want heads of at least 16.
    return model_folder(tmp_path_factory.mktemp("fp8") / "model", head_dim=32, hidden_size=128)


def tokens_of(folder: str, **settings: Any) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """What the prompts are continued with, and the core's numbers."""
    values = {"device": "cuda", "dtype": "float32", "block_size": 16, "kv_cache_dtype": "fp8"}
    core = EngineCore(config_of(folder, **{**values, **settings}))
    try:
        return generate(core, PROMPTS, GREEDY), core.metrics()
    finally:
        core.shutdown()


@pytest.mark.parametrize("mode", ["NONE", "FULL", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("backend", ["triton", "lazy_plan"])
def test_kernels_make_the_tokens_of_the_oracle(folder: str, backend: str, mode: str) -> None:
    expected, _ = tokens_of(folder, attention_backend="reference")
    settings = {"attention_backend": backend, "cudagraph_mode": CUDAGraphMode(mode)}
    assert tokens_of(folder, **settings)[0] == expected
    assert expected != tokens_of(folder, kv_cache_dtype="auto")[0], "nothing was rounded"


def test_blocks_are_shared_with_engines_of_the_same_kind_alone(folder: str) -> None:
    with shared_memory() as shm:
        config = {"kv_role": "kv_both", "kv_connector_extra_config": {"directory": shm}}
        values: dict[str, Any] = {"device": "cuda", "dtype": "float32", "block_size": 4}
        values["kv_transfer_config"] = config
        keeper = EngineCore(config_of(folder, **values, kv_cache_dtype="fp8"))
        expected = generate(keeper, PROMPTS, GREEDY)
        for kind, shares in (("fp8_e4m3", True), ("auto", False)):
            tokens, metrics = tokens_of(folder, **{**values, "kv_cache_dtype": kind})
            assert (metrics["external_cached_tokens"] > 0) is shares, kind
            assert metrics["external_queried_tokens"] > 0
            if shares:
                assert tokens == expected
        keeper.shutdown()
