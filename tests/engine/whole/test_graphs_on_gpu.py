"""Real CUDA graphs: the engine's tokens, what a failed capture leaves, and other threads.

Everything is in float32: filling a batch up may change which kernel multiplies matrices, and so the
last bits; in float32 they decide no token of the model at hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from sample_engine.attention.interface import CommonAttentionMetadata
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from sample_engine.errors import GraphCaptureError
from sample_engine.graphs.execution import CudaGraphExecution
from sample_engine.model_runner import ModelRunner
from tests.engine.support.engine import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    add_head,
    config_of,
    generate,
    model_folder,
    run,
)
from tests.engine.support.graphs import captured_state
from tests.engine.support.speculation import EAGLE, NGRAM

pytestmark = pytest.mark.gpu

BACKENDS = ("triton", "lazy_plan", "reference")
MODES = ("FULL", "PIECEWISE", "FULL_AND_PIECEWISE")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    # Kernels want heads of at least 16.
    path = tmp_path_factory.mktemp("graphs") / "model"
    return add_head(model_folder(path, head_dim=32, hidden_size=128))


def settings_of(mode: str, **settings: Any) -> dict[str, Any]:
    return {
        "device": "cuda",
        "dtype": "float32",
        "block_size": 16,
        "cudagraph_mode": CUDAGraphMode(mode),
        **settings,
    }


def core_of(folder: str, mode: str, **settings: Any) -> EngineCore:
    return EngineCore(config_of(folder, **settings_of(mode, **settings)))


# The execution itself


@pytest.fixture
def execution() -> CudaGraphExecution:
    return CudaGraphExecution(torch.device("cuda", 0))


def doubled(execution: CudaGraphExecution) -> None:
    """A capture and its replay, random numbers and large memory: the device is usable."""
    given, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    with execution.session():
        graph = execution.capture(lambda: out.copy_(given * 2), execution.new_pool())
    assert not out.any(), "a capture executes nothing"
    given.fill_(21)
    graph.replay()
    assert out.tolist() == [42.0] * 4
    assert torch.rand(3, device="cuda").isfinite().all()
    large = torch.empty(1 << 26, device="cuda")
    del large
    torch.cuda.empty_cache()
    torch.cuda.synchronize()


def waits() -> None:
    torch.ones(3, device="cuda").sum().item()


def raises() -> None:
    torch.ones(3, device="cuda").mul_(2)
    raise ValueError("nothing to do with CUDA")


def synchronizes() -> None:
    torch.ones(3, device="cuda").mul_(2)
    torch.cuda.synchronize()


def draws_and_waits() -> None:
    torch.rand(3, device="cuda").sum().item()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (waits, RuntimeError),
        (raises, ValueError),
        (synchronizes, RuntimeError),
        (draws_and_waits, RuntimeError),
    ],
)
def test_after_a_capture_that_failed_the_device_is_usable(
    execution: CudaGraphExecution, what: Callable[[], None], error: type[Exception]
) -> None:
    for _ in range(2):
        # torch begins no capture in a pool that a failed one has left without any graph.
        with pytest.raises(error), execution.session():
            execution.capture(what, execution.new_pool())
        doubled(execution)


def test_a_capture_needs_a_session(execution: CudaGraphExecution) -> None:
    with pytest.raises(GraphCaptureError, match=r"outside of session\(\)"):
        execution.capture(lambda: None, execution.new_pool())


def test_other_threads_may_use_the_device_while_something_is_captured(
    execution: CudaGraphExecution,
) -> None:
    out = torch.zeros(4, device="cuda")
    done: list[float] = []

    def elsewhere() -> None:
        pinned = torch.ones(1 << 20, pin_memory=True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            done.append(float(pinned.to("cuda", non_blocking=True).sum()))

    def captured() -> None:
        out.add_(1)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        out.add_(1)

    with execution.session():
        graph = execution.capture(captured, execution.new_pool())
    graph.replay()
    assert done == [float(1 << 20)]
    assert out.tolist() == [2.0] * 4


# The engine


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_the_same_with_graphs_and_without(
    folder: str, backend: str, mode: str, params: SamplingParams
) -> None:
    expected = generate(core_of(folder, "NONE", attention_backend=backend), PROMPTS, params)
    core = core_of(folder, mode, attention_backend=backend)
    assert generate(core, PROMPTS, params) == expected
    for name, prompt in PROMPTS.items():  # one at a time, and prefixes that are in the cache
        assert generate(core, {name: prompt}, params)[name] == expected[name]


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_that_shrink_and_requests_that_are_preempted(folder: str, backend: str) -> None:
    lengths = dict(zip(PROMPTS, (70, 3, 9, 1, 50, 70, 2, 11, 40, 60), strict=True))

    def tokens(mode: str) -> dict[str, list[int]]:
        core = core_of(folder, mode, attention_backend=backend, num_blocks=14)
        for name, prompt in PROMPTS.items():
            core.add_request(name, prompt, SamplingParams(max_tokens=lengths[name]))
        found = run(core)[0]
        assert core.metrics()["preemptions"] > 0
        return found

    assert tokens("FULL_AND_PIECEWISE") == tokens("NONE")


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("speculative", [NGRAM, EAGLE], ids=["ngram", "eagle"])
def test_speculation_makes_the_same_tokens_with_graphs_and_without(
    folder: str, speculative: dict[str, Any], backend: str, params: SamplingParams
) -> None:
    settings = {"attention_backend": backend, "speculative_config": speculative}
    expected = generate(core_of(folder, "NONE", **settings), PROMPTS, params)
    core = core_of(folder, "FULL_AND_PIECEWISE", **settings)
    assert generate(core, PROMPTS, params) == expected
    for name, prompt in PROMPTS.items():
        assert generate(core, {name: prompt}, params)[name] == expected[name]


def test_a_flash_backend_runs_in_pieces(folder: str, tmp_path: Any) -> None:
    shape = {"head_dim": 64, "hidden_size": 256}
    settings = {"dtype": "bfloat16", "attention_backend": "flash"}
    model = model_folder(tmp_path / "flash", **shape)
    try:
        core = core_of(model, "FULL_AND_PIECEWISE", **settings)
    except Exception as error:
        pytest.skip(f"no flash library runs here: {error}")
    assert core.info()["cudagraph_mode"] == "PIECEWISE"
    found = generate(core, PROMPTS, GREEDY)
    assert all(len(tokens) == len(next(iter(found.values()))) for tokens in found.values())


class Reusing(ModelRunner):
    """A runner with the bug of vLLM #44253: warm-up and capture get the same metadata."""

    def build_metadata(self, common: CommonAttentionMetadata) -> dict[str, Any]:
        if self.graphs is not None:
            return super().build_metadata(common)
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        key = common.num_reqs, common.num_tokens
        if key not in kept:
            kept[key] = super().build_metadata(common)
        found: Mapping[str, Any] = kept[key]
        return dict(found)


@pytest.mark.parametrize("kind", [ModelRunner, Reusing], ids=["own states", "one state"])
def test_a_plan_that_warm_up_and_capture_share_gives_wrong_results(
    folder: str, kind: type[ModelRunner]
) -> None:
    values = settings_of("FULL", attention_backend="lazy_plan", num_blocks=40, seed=1)
    runner = kind(config_of(folder, **values))
    runner.capture_graphs()
    assert runner.graphs is not None
    desc = runner.graphs.dispatch([1, 1])
    plan = captured_state(runner.graphs.manager, desc).attn_metadata["layers.0"].plan
    buffers = runner.inputs.buffers
    for longest in (100, 7):
        buffers.step.numpy["query_start_loc"][:3] = [0, 1, 2]
        buffers.step.numpy["seq_lens"][:2] = [longest, 3]
        buffers.step.push()
        runner.graphs.run(desc)
        torch.cuda.synchronize()
        follows = int(plan.splits.item_stop.max()) == longest
        assert follows == (kind is ModelRunner)


@pytest.mark.parametrize("speculative", [NGRAM, EAGLE], ids=["ngram", "eagle"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_follows_the_model_is_captured_where_it_speculates(
    folder: str, backend: str, speculative: dict[str, Any]
) -> None:
    plain = core_of(folder, "NONE", attention_backend=backend)
    speculating = {**speculative, "step_graphs": True}
    core = core_of(folder, "FULL", attention_backend=backend, speculative_config=speculating)
    assert core.runner.step_graphs is not None, "its capture has failed: see the warning"
    assert generate(core, PROMPTS, GREEDY) == generate(plain, PROMPTS, GREEDY)
    core.shutdown()
    plain.shutdown()
