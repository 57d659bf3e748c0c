"""The plugin's software graph finds nothing wrong with the engine's graphs and replays them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from sample_engine.graphs.execution import CapturedGraph, GraphExecution
from tests.engine.speculate_support import EAGLE, NGRAM
from tests.engine.support import GREEDY, PROMPTS, add_head, config_of, generate, model_folder

software = pytest.importorskip("pytest_cudafork.capture.software.backend")


class PluginExecution(GraphExecution):
    """A graph backend of the plugin, as the engine wants it."""

    def __init__(self) -> None:
        self.backend = software.SoftwareBackend()
        self.findings: list[Any] = []

    def new_pool(self) -> Any:
        return self.backend.new_pool()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        yield

    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        captured: Any = self.backend.capture(fn, pool=pool)
        self.findings += captured.findings
        graph: CapturedGraph = captured
        return graph

    def synchronize(self) -> None:
        self.backend.synchronize()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return add_head(model_folder(tmp_path_factory.mktemp("model")))


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
    execution = PluginExecution()
    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    core = EngineCore(config_of(folder, cudagraph_mode=mode, **settings), execution)
    assert not execution.findings
    assert generate(core, PROMPTS, GREEDY) == expected
