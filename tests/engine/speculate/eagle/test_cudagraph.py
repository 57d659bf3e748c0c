"""The draft head's graphs: which attention state each pass gets, and what a wrong one would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.manager import CudaGraphManager
from sample_engine.graphs.state import AttentionState, AttentionStatePair
from sample_engine.speculate.eagle.cudagraph import (
    DecodeEagleCudaGraphManager,
    PrefillEagleCudaGraphManager,
)
from tests.engine.support.graphs import LARGE, PIECES, SMALL, Factory, SoftwareExecution

Pairs = Mapping[BatchExecutionDescriptor, AttentionStatePair]


class Engine:
    """A model and a draft head whose work is to divide by lengths, planned on first use."""

    def __init__(self) -> None:
        self.model = Factory()
        self.execution = SoftwareExecution()
        self.target = CudaGraphManager((SMALL, LARGE), self.execution)
        self.prefill = PrefillEagleCudaGraphManager(
            (SMALL, LARGE), self.execution, pool=self.target.pool
        )
        self.pairs = self.target.capture(self.model)
        self.drafts = torch.zeros(8)
        self.seen: list[tuple[int, bool, bool, list[float]]] = []

    def forward(
        self,
        desc: BatchExecutionDescriptor,
        attn_metadata: Mapping[str, Any],
        slot_mappings: Mapping[str, torch.Tensor],
        cg_mode: CUDAGraphMode,
    ) -> None:
        assert cg_mode is CUDAGraphMode.NONE
        metadata = attn_metadata["layers.0"]
        if metadata.shares is None:
            metadata.shares = 1.0 / metadata.lengths
        self.drafts[: desc.num_tokens].copy_(metadata.shares)
        assert slot_mappings["layers.0"].shape[0] == desc.num_tokens

    def prepare(self, desc: BatchExecutionDescriptor) -> None:
        self.model.lengths[: desc.num_tokens] = 100.0 + desc.num_tokens

    def step(self, desc: BatchExecutionDescriptor, *lengths: float) -> torch.Tensor:
        """The drafts of a step with these lengths."""
        self.drafts.fill_(float("nan"))
        self.model.lengths[: len(lengths)] = torch.tensor(lengths)
        self.target.run(desc)
        self.prefill.run(desc)
        return self.drafts[: len(lengths)]


def test_prefill_follows_the_lengths_of_the_step_that_the_model_just_ran() -> None:
    engine = Engine()
    engine.prefill.capture(engine.forward, engine.pairs, engine.prepare)
    assert torch.equal(engine.step(SMALL, 2.0, 8.0), torch.tensor([0.5, 0.125]))
    assert torch.equal(engine.step(LARGE, 1.0, 4.0, 2.0, 8.0), torch.tensor([1, 0.25, 0.5, 0.125]))
    assert torch.equal(engine.step(SMALL, 4.0, 4.0), torch.tensor([0.25, 0.25]))


def test_each_pass_gets_its_own_state_of_the_pair_and_inputs_that_belong_to_it() -> None:
    engine = Engine()
    seen: list[tuple[BatchExecutionDescriptor, Any, list[float] | None]] = []

    def forward(
        desc: BatchExecutionDescriptor,
        attn_metadata: Mapping[str, Any],
        slot_mappings: Mapping[str, torch.Tensor],
        cg_mode: CUDAGraphMode,
    ) -> None:
        del slot_mappings, cg_mode
        capturing = len(seen) % 2 == 1
        metadata = attn_metadata["layers.0"]
        lengths: list[float] | None = None if capturing else metadata.lengths.tolist()
        seen.append((desc, metadata, lengths))

    states = engine.prefill.capture(forward, engine.pairs, engine.prepare)
    assert states == engine.pairs
    expected: list[tuple[BatchExecutionDescriptor, Any, list[float] | None]] = []
    for desc in (LARGE, SMALL):
        pair = engine.pairs[desc]
        lengths = [100.0 + desc.num_tokens] * desc.num_tokens
        expected.append((desc, pair.warmup.attn_metadata["layers.0"], lengths))
        expected.append((desc, pair.captured.attn_metadata["layers.0"], None))
    assert seen == expected


def test_a_warm_up_with_the_captured_state_would_read_what_nobody_computed() -> None:
    """The bug of vLLM #44253: this test shows that it would be seen."""
    engine = Engine()
    wrong = {
        desc: AttentionStatePair(pair.captured, pair.captured)
        for desc, pair in engine.pairs.items()
    }
    warmups: list[torch.Tensor] = []

    def forward(desc: BatchExecutionDescriptor, *rest: Any) -> None:
        engine.forward(desc, *rest)
        warmups.append(engine.drafts[: desc.num_tokens].clone())

    engine.prefill.capture(forward, engine.pairs, engine.prepare)
    assert warmups[0].isfinite().all()
    warmups.clear()
    engine.prefill.capture(forward, wrong, engine.prepare)
    assert warmups[0].isnan().all()


def test_what_the_model_was_not_captured_for_is_refused() -> None:
    engine = Engine()
    pairs: Pairs = {SMALL: engine.pairs[SMALL]}
    with pytest.raises(ValueError, match="no attention state of FULL, 4 requests, 4 tokens"):
        engine.prefill.capture(engine.forward, pairs, engine.prepare)


def test_one_pool_serves_model_and_head() -> None:
    engine = Engine()
    engine.prefill.capture(engine.forward, engine.pairs, engine.prepare)
    assert set(engine.execution.pools) == {engine.target.pool}
    assert SMALL in engine.prefill
    assert PIECES not in engine.prefill


def test_decode_steps_have_states_of_their_own() -> None:
    factory = Factory()
    decode = DecodeEagleCudaGraphManager((SMALL, LARGE), SoftwareExecution())
    states = decode.capture(factory)
    kinds = [(call[1], call[2]) for call in factory.calls if call[0] == "prepare"]
    assert kinds == [(LARGE, True), (LARGE, False), (SMALL, True), (SMALL, False)]
    for pair in states.values():
        assert isinstance(pair.warmup, AttentionState)
        assert pair.warmup.attn_metadata["layers.0"] is not pair.captured.attn_metadata["layers.0"]
    factory.lengths[:2] = torch.tensor([2.0, 4.0])
    decode.run(SMALL)
    assert factory.out[:2].tolist() == [0.5, 0.25]
    assert decode.dispatch(1, 1, 1) == SMALL
