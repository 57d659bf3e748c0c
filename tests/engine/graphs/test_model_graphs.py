"""The model's graphs compute what an eager pass does: every size, filled up, shrinking, mixed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from sample_engine.attention.interface import AttentionBackend, CommonAttentionMetadata
from sample_engine.attention.lazy_plan import LazyPlanBackend
from sample_engine.attention.reference import ReferenceBackend
from sample_engine.batch.request import Request, RequestStatus
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, ScheduledRequest
from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.graphs.piecewise import AttendInto
from sample_engine.model_runner import ModelRunner
from tests.engine.support.attention import Shape, batch_of, error, run
from tests.engine.support.engine import MODEL_LEN, VOCAB, config_of
from tests.engine.support.graphs import SoftwareExecution, captured_state, poison

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE
AUX = (0, 1)
BACKENDS = ("reference", "lazy_plan")


class Pass:
    """What a runner does for graphs."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def build_metadata(self, common: CommonAttentionMetadata) -> Mapping[str, Any]:
        return self.runner.build_metadata(common)

    def attention(self, slot_mapping: torch.Tensor, attn_metadata: Mapping[str, Any]) -> AttendInto:
        runner = self.runner

        def attend(
            layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor
        ) -> None:
            cache = runner.caches[layer]
            runner.backends[None].write_kv(k, v, cache, slot_mapping)
            runner.backends[None].forward(q, cache, attn_metadata[runner.layer_names[layer]], out)

        return attend

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        attn_metadata: Mapping[str, Any],
    ) -> Any:
        into = self.attention(slot_mapping, attn_metadata)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            into(layer, q, k, v, out)
            return out

        hidden, aux = self.runner.model(input_ids, positions, attend, AUX)
        return _Output(hidden, aux)


class _Output:
    def __init__(self, hidden: torch.Tensor, aux: list[torch.Tensor]) -> None:
        self.hidden, self.aux = hidden, aux


def runner_of(folder: str, backend: str) -> ModelRunner:
    runner = ModelRunner(config_of(folder, attention_backend=backend))
    chance = torch.Generator().manual_seed(3)
    for cache in runner.caches:  # as if texts of any length had been computed; block 0 is nobody's
        for each in cache:
            each[1:] = torch.randn(each[1:].shape, generator=chance)
    return runner


def graphs_of(
    runner: ModelRunner, mode: CUDAGraphMode, execution: SoftwareExecution, **settings: Any
) -> ModelGraphs:
    graphs = ModelGraphs(
        mode,
        model=runner.model,
        spec=runner.spec,
        inputs=runner.inputs,
        execution=execution,
        max_num_reqs=runner.config.max_num_seqs,
        max_num_tokens=runner.config.max_num_batched_tokens,
        max_model_len=runner.max_model_len,
        aux_layers=AUX,
        **{"query_lens": (1, 4), **settings},
    )
    graphs.capture(Pass(runner))
    return graphs


class Batches:
    """Batches of requests with random texts and blocks of their own."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.arrivals = 0

    def of(self, *sizes: tuple[int, int]) -> ScheduledBatch:
        """Requests with so many tokens in this step, and so many before."""
        blocks = list(range(1, 200))
        self.chance.shuffle(blocks)
        parts = []
        for count, before in sizes:
            tokens = self.chance.choices(range(VOCAB), k=before + count)
            request = Request(f"r{self.arrivals}", tokens, SamplingParams(), 0, self.arrivals)
            request.block_ids = [blocks.pop() for _ in range(-(-len(tokens) // 4))]
            request.status = RequestStatus.RUNNING
            self.arrivals += 1
            parts.append(ScheduledRequest(request, before, count))
        return ScheduledBatch(tuple(parts))


def finish(batch: ScheduledBatch) -> None:
    for part in batch.requests:
        part.request.status = RequestStatus.FINISHED


def compare(
    runner: ModelRunner, graphs: ModelGraphs, batch: ScheduledBatch
) -> BatchExecutionDescriptor:
    """Run a batch both ways: hidden states, features and the cache must be the same."""
    before = [(cache.key.clone(), cache.value.clone()) for cache in runner.caches]
    num_tokens = batch.num_tokens
    with torch.inference_mode():
        inputs = runner.inputs.prepare(batch)
        metadata = runner.build_metadata(inputs.common)
        eager = Pass(runner).forward(
            inputs.input_ids, inputs.positions, inputs.common.slot_mapping, metadata
        )
        caches = [(cache.key.clone(), cache.value.clone()) for cache in runner.caches]
        for cache, old in zip(runner.caches, before, strict=True):
            cache.key.copy_(old[0])
            cache.value.copy_(old[1])
        desc = graphs.dispatch([part.count for part in batch.requests])
        assert desc.cg_mode is not NONE
        poison(graphs._outputs.hidden)
        inputs = runner.inputs.prepare(batch, desc.num_reqs or 0, desc.num_tokens)
        if desc.cg_mode is FULL:
            hidden, aux = graphs.run(desc)
        else:
            metadata = runner.build_metadata(inputs.common)
            hidden, aux = graphs.run_pieces(
                desc, Pass(runner).attention(inputs.common.slot_mapping, metadata)
            )
    torch.testing.assert_close(hidden[:num_tokens], eager.hidden)
    for each, expected in zip(aux, eager.aux, strict=True):
        torch.testing.assert_close(each[:num_tokens], expected)
    for cache, new in zip(runner.caches, caches, strict=True):
        torch.testing.assert_close(cache.key, new[0])
        torch.testing.assert_close(cache.value, new[1])
        assert not cache.key[0].any(), "padding was written to the null block"
    finish(batch)
    return desc


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_passes_of_every_size_filled_up_and_shrinking(folder: str, backend: str) -> None:
    runner = runner_of(folder, backend)
    graphs = graphs_of(runner, FULL, SoftwareExecution())
    batches, chance, used = Batches(), random.Random(1), set()
    for num_reqs in (1, 2, 3, 4, 5, 6, 7, 8, 3, 8, 1):
        lengths = [chance.choice([0, 1, 3, 15, 60, MODEL_LEN - 1]) for _ in range(num_reqs)]
        used.add(compare(runner, graphs, batches.of(*((1, each) for each in lengths))))
    assert {desc.num_reqs for desc in used} == {1, 2, 4, 8}


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_passes_that_verify_drafts_some_of_them_fewer(folder: str, backend: str) -> None:
    runner = runner_of(folder, backend)
    graphs = graphs_of(runner, FULL, SoftwareExecution())
    batches = Batches()
    for counts in ([4, 4], [4], [4, 1, 3], [2], [1, 1, 4, 4, 2, 3, 4, 1]):
        sizes = [(count, 9 * index) for index, count in enumerate(counts)]
        desc = compare(runner, graphs, batches.of(*sizes))
        assert desc.uniform_query_len == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_pieces_serve_any_mix_of_prompts_and_decodes(folder: str, backend: str) -> None:
    runner = runner_of(folder, backend)
    execution = SoftwareExecution()
    graphs = graphs_of(runner, PIECEWISE, execution)
    assert len(execution.graphs) == (runner.num_layers + 1) * len(graphs.manager.descs)
    batches = Batches()
    for sizes in (
        [(11, 0)],
        [(1, 40), (1, 3), (20, 7)],
        [(1, 100)],
        [(33, 0), (1, 1), (30, 60)],
        [(1, 5), (1, 6), (1, 0)],
    ):
        assert compare(runner, graphs, batches.of(*sizes)).cg_mode is PIECEWISE


def test_one_runner_may_have_both_kinds(folder: str) -> None:
    runner = runner_of(folder, "lazy_plan")
    execution = SoftwareExecution()
    whole = graphs_of(runner, FULL, execution)
    pieces = graphs_of(runner, PIECEWISE, execution)
    batches = Batches()
    for _ in range(2):
        compare(runner, pieces, batches.of((9, 3), (1, 60)))
        compare(runner, whole, batches.of((1, 3), (1, 60), (1, 9)))


def test_what_the_inputs_hold_when_metadata_is_made_belongs_to_its_descriptor(folder: str) -> None:
    """And not to a larger batch that was prepared before."""
    runner = runner_of(folder, "lazy_plan")
    seen: list[tuple[int, list[int], list[int], int]] = []

    class Watching(Pass):
        def build_metadata(self, common: CommonAttentionMetadata) -> Mapping[str, Any]:
            tensors = common.query_start_loc.tolist(), common.seq_lens.tolist()
            seen.append((common.num_tokens, *tensors, common.max_seq_len))
            assert not common.block_table.any()
            assert (common.slot_mapping == -1).all()
            return super().build_metadata(common)

    graphs = graphs_of(runner, FULL, SoftwareExecution(), sizes=(2, 3), query_lens=(4,))
    runner.inputs.buffers.table.numpy["block_table"][:] = 7
    graphs.capture(Watching(runner))
    expected = [
        (tokens, [4 * each for each in range(reqs + 1)], [MODEL_LEN] * reqs, MODEL_LEN)
        for tokens, reqs in ((12, 3), (8, 2))
        for _ in ("warm-up", "capture")
    ]
    assert seen == expected


def test_the_plan_is_part_of_a_whole_pass_and_made_anew_by_each_replay(folder: str) -> None:
    runner = runner_of(folder, "lazy_plan")
    execution = SoftwareExecution()
    graphs = graphs_of(runner, FULL, execution, sizes=(2,), query_lens=(1,))
    (graph,) = execution.graphs
    assert graph.names.count("cumsum") == 1, "one plan for all layers"
    (desc,) = graphs.manager.descs
    plan = captured_state(graphs.manager, desc).attn_metadata["layers.0"].plan
    compare(runner, graphs, Batches().of((1, 60), (1, 0)))
    assert plan.splits.item_stop.max() == 61
    compare(runner, graphs, Batches().of((1, 3), (1, 1)))
    assert plan.splits.item_stop.max() == 4


@pytest.mark.parametrize("kind", [ReferenceBackend, LazyPlanBackend])
def test_what_tokens_of_nobody_hold_reaches_no_other(kind: type[AttentionBackend]) -> None:
    batch = batch_of(Shape(), [(3, 9), (1, 4), (4, 40)], pad_tokens=3, pad_reqs=1)
    batch.query[-3:] = float("nan")
    assert error(run(kind(batch.shape.spec), batch), batch) < 1e-6


class Reusing(Pass):
    """The bug of vLLM #44253: warm-up and capture get the same metadata."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self.kept: dict[int, Mapping[str, Any]] = {}

    def build_metadata(self, common: CommonAttentionMetadata) -> Mapping[str, Any]:
        return self.kept.setdefault(common.num_tokens, super().build_metadata(common))


def _spoil_plan(graphs: ModelGraphs) -> None:
    (desc,) = graphs.manager.descs
    plan = captured_state(graphs.manager, desc).attn_metadata["layers.0"].plan
    with torch.inference_mode():
        plan.splits.item_stop.fill_(1)


def test_a_plan_that_warm_up_and_capture_share_is_not_part_of_the_graph(folder: str) -> None:
    runner = runner_of(folder, "lazy_plan")
    execution = SoftwareExecution()
    graphs = graphs_of(runner, FULL, execution, sizes=(2,), query_lens=(1,))
    assert "cumsum" in execution.graphs[0].names
    _spoil_plan(graphs)
    compare(runner, graphs, Batches().of((1, 60), (1, 3)))
    graphs.capture(Reusing(runner))
    assert "cumsum" not in execution.graphs[1].names
    # The plan of the longest texts would do for shorter ones, too: nobody would see it.
    _spoil_plan(graphs)
    with pytest.raises(AssertionError, match="not close"):
        compare(runner, graphs, Batches().of((1, 60), (1, 3)))


def test_the_graphs_keep_no_reference_to_what_ran_the_model(folder: str) -> None:
    import weakref

    runner = runner_of(folder, "reference")
    graphs = graphs_of(runner, FULL, SoftwareExecution(), sizes=(1,))
    last = weakref.ref(runner)
    del runner
    assert last() is None
    graphs.reset()
    assert graphs.dispatch([1]).cg_mode is NONE
