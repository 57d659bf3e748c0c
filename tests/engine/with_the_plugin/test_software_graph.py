"""The plugin's software graph finds nothing wrong with the engine's graphs and replays them."""

from __future__ import annotations

from typing import Any

import pytest

from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import GREEDY, PROMPTS, config_of, generate
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
