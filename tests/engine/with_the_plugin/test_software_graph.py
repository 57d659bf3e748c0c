"""The plugin's software graph finds nothing wrong with the engine's graphs and replays them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from sample_engine import LLM
from sample_engine.config import CUDAGraphMode, EngineConfig
from sample_engine.engine_core import EngineCore
from sample_engine.errors import ConfigError
from sample_engine.parallel.place import RankPlace
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    config_of,
    generate,
    plain_tokens,
)
from tests.engine.support.graphs import SoftwareExecution
from tests.engine.support.speculation import EAGLE, NGRAM


@pytest.mark.parametrize("speculative", [None, NGRAM, EAGLE], ids=["none", "ngram", "eagle"])
@pytest.mark.parametrize("backend", ["reference", "lazy_plan"])
def test_the_engines_graphs_are_right_for_the_plugin(
    folder: str, backend: str, speculative: dict[str, Any] | None
) -> None:
    settings: dict[str, Any] = {
        "attention_backend": backend,
        "speculative_config": speculative,
        "max_model_len": 64,
        "cudagraph_capture_sizes": (1, 3, 8, 64),
    }
    expected = generate(EngineCore(config_of(folder, **settings)), PROMPTS, GREEDY)
    execution = SoftwareExecution()
    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    core = EngineCore(config_of(folder, cudagraph_mode=mode, **settings), execution)
    assert not execution.findings
    assert generate(core, PROMPTS, GREEDY) == expected


def recorded_core(config: EngineConfig, place: RankPlace) -> EngineCore:
    """A rank's core whose graphs are the plugin's: recorded without a finding, sums included."""
    execution = SoftwareExecution()
    core = EngineCore(config, execution, place)
    assert not execution.findings, execution.findings
    names = [name for graph in execution.graphs for name in graph.names]
    sums = [name for name in names if "all_reduce" in name]
    waits = [name for name in names if "wait_tensor" in name]
    sizes = len(core.config.cudagraph_capture_sizes or ())
    assert len(sums) == len(waits) == sizes * (1 + 2 * core.runner.num_layers)
    return core


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
def test_the_graphs_of_two_ranks_hold_their_sums(folder: str, mode: str) -> None:
    given = {name: PROMPTS[name] for name in ("alike-0", "alike-9", "own-1", "own-33")}
    with LLM(
        model=folder,
        device="cpu",
        worker_method="fork",
        tensor_parallel_size=2,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=[1, 8],
        max_model_len=64,
        block_size=4,
        num_blocks=60,
        max_num_seqs=8,
        max_num_batched_tokens=16,
        core_factory=recorded_core,
    ) as llm:
        prompts = [{"prompt_token_ids": tokens} for tokens in given.values()]
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    for prompt, output in zip(given.values(), outputs, strict=True):
        assert list(output.token_ids) == plain_tokens(folder, prompt, COUNT, GREEDY)


PROJECT = Path(__file__).resolve().parents[3]
EXAMPLE = PROJECT / "docs" / "examples" / "engine" / "software_graph.py"
ON_CPU: dict[str, Any] = {"max_model_len": 64, "num_blocks": 60, "block_size": 4}


def example() -> Any:
    """The example of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location("software_graph_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", ["inproc", "fork"])
def test_the_example_captures_and_replays_without_a_gpu(folder: str, method: str) -> None:
    given = {name: PROMPTS[name] for name in ("alike-9", "own-1", "own-33")}
    prompts = [{"prompt_token_ids": tokens} for tokens in given.values()]
    settings = {**ON_CPU, "cudagraph_capture_sizes": [1, 4], "max_num_seqs": 4}
    graphs, outputs = example().complete(prompts, model=folder, worker_method=method, **settings)
    for prompt, output in zip(given.values(), outputs, strict=True):
        assert list(output.token_ids) == plain_tokens(folder, prompt, 8)
    if method == "inproc":  # the core of another process has captured with its own
        assert graphs.captures
        assert not any(capture.findings for capture in graphs.captures)
    else:
        assert not graphs.captures


def test_what_cannot_capture_is_refused_by_name(folder: str) -> None:
    settings: dict[str, Any] = {**ON_CPU, "model": folder, "device": "cpu"}
    with pytest.raises(ConfigError, match=r"or give LLM an object .*docs/examples/engine/soft"):
        LLM(cudagraph_mode="FULL", **settings)
    with pytest.raises(ConfigError, match="lacks the methods new_pool, session, capture, sync"):
        LLM(cudagraph_mode="FULL", graph_execution=object(), **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cudagraph_mode='NONE' captures nothing"):
        LLM(graph_execution=SoftwareExecution(), **settings)
