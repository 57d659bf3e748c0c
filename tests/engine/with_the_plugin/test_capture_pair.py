"""``capture_pair`` on the engine's own graphs: right as they are, caught when two passes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.execution import CapturedElsewhere
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.model_runner import ModelRunner
from tests.engine.support.engine import config_of

cudafork = pytest.importorskip("pytest_cudafork")
pytest.importorskip("pytest_cudafork.capture.pair.capture_pair")

LENGTHS = ([40, 3], [7, 61], [1, 2])
BACKENDS = pytest.mark.graph_capture(backends=["software", "cuda"])


class _OneState:
    """A runner that hands out the metadata of a batch's size again."""

    def __init__(self, runner: ModelRunner) -> None:
        self.attention = runner.attention
        self._build = runner.build_metadata
        self._kept: dict[int, Mapping[str, Any]] = {}

    def build_metadata(self, common: Any) -> Mapping[str, Any]:
        if common.num_tokens not in self._kept:
            self._kept[common.num_tokens] = self._build(common)
        return self._kept[common.num_tokens]


def _check(
    folder: str, capture_pair: Any, device: str, backend: str, shares: bool = False
) -> tuple[Any, BatchExecutionDescriptor]:
    """Check the graph of two requests that decode."""
    config = config_of(
        folder, attention_backend=backend, device=device, num_blocks=40, block_size=16,
        max_model_len=64, max_num_seqs=4,
    )  # fmt: skip
    runner = ModelRunner(config)
    graphs = ModelGraphs(
        CUDAGraphMode.FULL, model=runner.model, spec=runner.spec, inputs=runner.inputs,
        execution=CapturedElsewhere(), max_num_reqs=4, max_num_tokens=64, max_model_len=64,
        sizes=(2,),
    )  # fmt: skip
    (desc,) = graphs.manager.descs
    for cache in runner.caches:
        cache.key.normal_()
        cache.value.normal_()
    inputs = runner.inputs.buffers.step.device
    tables = runner.inputs.buffers.table.device["block_table"]

    def batch(lengths: list[int]) -> Callable[[], None]:
        def fill() -> None:
            new = torch.tensor(lengths, dtype=torch.int32)
            inputs["seq_lens"][:2].copy_(new)
            inputs["positions"][:2].copy_(new - 1)
            inputs["input_ids"][:2].copy_(new % 7)
            tables[:2, :4].copy_(torch.arange(1, 9).view(2, 4))

        return fill

    names = ("input_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens")
    passes: Any = _OneState(runner) if shares else runner
    with torch.inference_mode():
        pair = capture_pair(
            graphs.factory(passes),
            desc,
            persistent={**{name: inputs[name] for name in names}, "block_table": tables},
            outputs=lambda: graphs.outputs_of(desc)[0],
            vary=[batch(lengths) for lengths in LENGTHS],
        )
    return pair, desc


@BACKENDS
@pytest.mark.parametrize("backend", ["reference", "lazy_plan"])
def test_the_engines_factory_passes(
    folder: str, capture_pair: Any, graph_backend: Any, backend: str
) -> None:
    pair, _ = _check(folder, capture_pair, graph_backend.device, backend)
    assert pair.report.findings == ()
    assert "replay-differs" in pair.report.checks
    if backend == "lazy_plan":
        states = pair.warmup.attn_metadata["layers.0"], pair.captured.attn_metadata["layers.0"]
        assert states[0] is not states[1]
        assert states[1].plan is not None


@BACKENDS
def test_one_plan_for_warm_up_and_capture_is_caught_with_field_line_and_kernels(
    folder: str, capture_pair: Any, graph_backend: Any
) -> None:
    with pytest.raises(cudafork.CapturePairError) as caught:
        _check(folder, capture_pair, graph_backend.device, "lazy_plan", shares=True)
    found = {finding.check: finding for finding in caught.value.findings}
    assert {"aliased-state", "lazy-init-skipped", "missing-kernels"} <= found.keys()
    assert found["lazy-init-skipped"].path.endswith("attn_metadata['layers.0'].plan")
    assert "lazy_plan.py" in found["lazy-init-skipped"].where
    assert "lazy_plan.py" in str(caught.value)
