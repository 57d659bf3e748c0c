"""An engine core with graphs makes the tokens that it makes without: whatever the schedule does."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from sample_engine import LLM
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from sample_engine.errors import ConfigError, GraphCaptureError
from sample_engine.graphs.execution import CapturedGraph
from tests.engine.support.engine import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    config_of,
    generate,
    run,
)
from tests.engine.support.graphs import SoftwareExecution

SIZES = (1, 3, 8, 64)  # every batch of these tests fits one of them
BACKENDS = ("reference", "lazy_plan")
MODES = ("FULL", "PIECEWISE", "FULL_AND_PIECEWISE")


def core_of(folder: str, mode: str, **settings: Any) -> EngineCore:
    wished = CUDAGraphMode(mode)
    execution = None if wished is CUDAGraphMode.NONE else SoftwareExecution()
    values = {"max_model_len": 64, "cudagraph_capture_sizes": SIZES, **settings}
    return EngineCore(config_of(folder, cudagraph_mode=wished, **values), execution)


@functools.cache
def without_graphs(folder: str, backend: str, params: SamplingParams) -> dict[str, list[int]]:
    """What the prompts are continued with by a core that captures nothing."""
    return generate(core_of(folder, "NONE", attention_backend=backend), PROMPTS, params)


def replays(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> list[CUDAGraphMode]:
    """The modes of all steps from now on."""
    graphs = core.runner.graphs
    assert graphs is not None
    seen: list[CUDAGraphMode] = []
    dispatch = graphs.dispatch

    def watched(counts: Any) -> Any:
        desc = dispatch(counts)
        seen.append(desc.cg_mode)
        return desc

    monkeypatch.setattr(graphs, "dispatch", watched)
    return seen


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_the_same_with_graphs_and_without(
    folder: str, backend: str, mode: str, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = without_graphs(folder, backend, params)
    core = core_of(folder, mode, attention_backend=backend)
    seen = replays(core, monkeypatch)
    assert generate(core, PROMPTS, params) == expected
    assert set(seen) >= {each for each in CUDAGraphMode if each.value in mode.split("_AND_")}
    assert (CUDAGraphMode.NONE in seen) == (mode == "FULL")


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_that_end_one_after_the_other_shrink_the_batch(folder: str, backend: str) -> None:
    lengths = dict(zip(PROMPTS, (12, 3, 9, 1, 5, 7, 2, 11, 4, 6), strict=True))

    def tokens(mode: str) -> dict[str, list[int]]:
        core = core_of(folder, mode, attention_backend=backend)
        for name, prompt in PROMPTS.items():
            core.add_request(name, prompt, SamplingParams(max_tokens=lengths[name]))
        return run(core)[0]

    assert tokens("FULL_AND_PIECEWISE") == tokens("NONE")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_preempted_requests_go_on_the_same(folder: str, backend: str, mode: str) -> None:
    expected = without_graphs(folder, backend, GREEDY)
    core = core_of(folder, mode, attention_backend=backend, num_blocks=24)
    assert generate(core, PROMPTS, GREEDY) == expected
    assert core.metrics()["preemptions"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_prefix_hits_and_chunks_go_on_the_same(folder: str, backend: str) -> None:
    expected = without_graphs(folder, backend, GREEDY)
    core = core_of(
        folder, "FULL_AND_PIECEWISE", attention_backend=backend, max_num_batched_tokens=9
    )
    assert generate(core, PROMPTS, GREEDY) == expected
    assert generate(core, PROMPTS, GREEDY) == expected
    assert core.metrics()["prefix_cached_tokens"] > 0


def test_sizes_that_are_asked_for_are_captured(folder: str) -> None:
    core = core_of(folder, "FULL_AND_PIECEWISE", cudagraph_capture_sizes=(2, 5))
    graphs = core.runner.graphs
    assert graphs is not None
    assert [str(desc) for desc in graphs.manager.descs] == [
        "PIECEWISE, 5 tokens",
        "PIECEWISE, 2 tokens",
        "FULL, 5 requests, 5 tokens",
        "FULL, 2 requests, 2 tokens",
    ]


def test_the_core_says_which_graphs_it_has(folder: str) -> None:
    assert core_of(folder, "NONE").info()["cudagraph_mode"] == "NONE"
    assert core_of(folder, "FULL").info()["cudagraph_mode"] == "FULL"


def test_graphs_on_a_cpu_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="the model runs on 'cpu': leave it 'NONE'"):
        EngineCore(config_of(folder, cudagraph_mode=CUDAGraphMode.FULL))


class _Refusing(SoftwareExecution):
    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        raise RuntimeError("no graphs today")


@pytest.mark.parametrize("method", ["inproc", "fork"])
def test_a_capture_that_fails_is_the_same_error_however_the_core_is_started(
    method: str, folder: str
) -> None:
    with pytest.raises(GraphCaptureError, match=r"failed \(.*\): RuntimeError: no graphs today"):
        LLM(
            folder,
            device="cpu",
            worker_method=method,
            cudagraph_mode="FULL",
            graph_execution=_Refusing(),
        )


def test_a_core_that_is_shut_down_lets_go_of_its_runner_at_once(folder: str) -> None:
    core = core_of(folder, "FULL_AND_PIECEWISE")
    runner = weakref.ref(core.runner)
    gc.disable()
    try:
        core.shutdown()
        assert runner() is None
    finally:
        gc.enable()
