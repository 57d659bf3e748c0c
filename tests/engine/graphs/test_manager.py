"""The manager: what it asks of a factory, in which order, and what a failed capture leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sample_engine.attention.interface import AttentionBackend
from sample_engine.attention.registry import backend_class
from sample_engine.config import CUDAGraphMode
from sample_engine.errors import ConfigError, GraphCaptureError
from sample_engine.graphs.descriptor import BatchExecutionDescriptor, capture_order
from sample_engine.graphs.execution import execution_for
from sample_engine.graphs.manager import CudaGraphManager
from sample_engine.graphs.model_graphs import allowed_mode
from sample_engine.graphs.state import AttentionState, ForwardFn
from tests.engine.support.attention import BACKENDS
from tests.engine.support.graphs import (
    DESCS,
    FULL,
    LARGE,
    NONE,
    PIECES,
    PIECEWISE,
    SMALL,
    Factory,
    Lazy,
    SoftwareExecution,
)


def manager(execution: SoftwareExecution | None = None, **settings: Any) -> CudaGraphManager:
    return CudaGraphManager(DESCS, execution or SoftwareExecution(), **settings)


def test_each_descriptor_is_warmed_up_and_captured_piecewise_first_and_the_largest_first() -> None:
    factory = Factory()
    manager().capture(factory)
    assert factory.calls == [
        ("prepare", PIECES, True),
        ("forward", PIECES, NONE),
        ("forward", PIECES, PIECEWISE),
        *[
            call
            for desc in (LARGE, SMALL)
            for call in (
                ("prepare", desc, True),
                ("forward", desc, NONE),
                ("prepare", desc, False),
                ("forward", desc, NONE),
            )
        ],
    ]


def test_all_graphs_are_captured_in_one_session_on_one_pool() -> None:
    execution = SoftwareExecution()
    graphs = manager(execution)
    graphs.capture(Factory())
    assert execution.num_sessions == 1
    assert execution.pools == [graphs.pool, graphs.pool]
    shared = object()
    assert manager(SoftwareExecution(), pool=shared).pool is shared


def test_full_graphs_have_two_states_and_pieces_one() -> None:
    states = manager().capture(Factory())
    assert list(states) == list(capture_order(DESCS))
    for desc, pair in states.items():
        same = desc.cg_mode is PIECEWISE
        assert (pair.warmup is pair.captured) == same
        both = [state.attn_metadata["layers.0"] for state in pair]
        assert (both[0] is both[1]) == same
        # The persistent input is one and the same.
        assert len({s.slot_mappings["layers.0"].data_ptr() for s in pair}) == 1


def test_a_replay_does_what_was_initialized_on_first_use_with_the_lengths_of_the_moment() -> None:
    factory, graphs = Factory(), manager()
    graphs.capture(factory)
    for lengths in ([1.0, 2.0, 4.0, 8.0], [10.0, 5.0, 2.0, 1.0]):
        factory.lengths[:4] = torch.tensor(lengths)
        for desc in (LARGE, SMALL, LARGE):
            factory.out.fill_(float("nan"))
            graphs.run(desc)
            size = desc.num_tokens
            assert torch.equal(factory.out[:size], 1.0 / factory.lengths[:size])


def test_a_factory_that_hands_out_one_state_twice_makes_a_graph_that_does_not_follow() -> None:
    """The bug that two states are there to prevent: this test shows that it would be seen."""
    kept: dict[int, Lazy] = {}

    def shared(lengths: torch.Tensor) -> Lazy:
        return kept.setdefault(len(lengths), Lazy(lengths))

    factory, graphs = Factory(shared), manager()
    graphs.capture(factory)
    factory.lengths[:4] = torch.tensor([1.0, 2.0, 4.0, 8.0])
    graphs.run(LARGE)
    assert not torch.equal(factory.out[:4], 1.0 / factory.lengths[:4])


def test_nothing_is_dispatched_to_before_it_was_captured_or_after_a_reset() -> None:
    graphs = manager()
    assert graphs.dispatch(2, 2, 1).cg_mode is NONE
    graphs.capture(Factory())
    assert graphs.dispatch(2, 2, 1) == SMALL
    assert graphs.dispatch(3, 3, 1) == LARGE
    assert graphs.dispatch(2, 7, None) == PIECES
    assert graphs.query_lens == (1,)
    graphs.reset()
    assert graphs.dispatch(2, 2, 1).cg_mode is NONE
    with pytest.raises(KeyError, match=r"no FULL graph of FULL, 2 requests, 2 tokens"):
        graphs.run(SMALL)


def test_pieces_are_not_run_as_a_whole() -> None:
    graphs = manager()
    graphs.capture(Factory())
    with pytest.raises(KeyError, match="PIECEWISE and"):
        graphs.run(PIECES)


def test_a_capture_that_fails_says_which_and_leaves_no_graph() -> None:
    execution = SoftwareExecution()
    graphs, factory = manager(execution), Factory()

    def waits(desc: BatchExecutionDescriptor, warmup: bool) -> tuple[ForwardFn, AttentionState]:
        forward, state = factory(desc, warmup)

        def also_waits(cg_mode: CUDAGraphMode) -> None:
            forward(cg_mode)
            if desc == SMALL:
                factory.out.sum().item()

        return also_waits, state

    with pytest.raises(GraphCaptureError, match=r"\(FULL, 2 requests, 2 tokens\): CaptureFailed"):
        graphs.capture(waits)
    assert graphs.dispatch(4, 4, 1).cg_mode is NONE
    assert all(graph.is_reset for graph in execution.graphs)
    graphs.capture(factory)
    assert graphs.dispatch(4, 4, 1) == LARGE


def test_a_new_capture_replaces_the_old_one() -> None:
    execution = SoftwareExecution()
    graphs = manager(execution)
    graphs.capture(Factory())
    graphs.capture(Factory())
    assert [graph.is_reset for graph in execution.graphs] == [True, True, False, False]


def test_a_progress_bar_is_shown_if_it_is_wished(capsys: pytest.CaptureFixture[str]) -> None:
    manager(show_progress=True).capture(Factory(), "Capturing")
    said = capsys.readouterr().err
    assert "Capturing" in said
    assert "3/3" in said
    manager(show_progress=False).capture(Factory())
    assert not capsys.readouterr().err


def test_a_cpu_has_no_cuda_graphs() -> None:
    with pytest.raises(ConfigError, match="the model runs on 'cpu': leave it 'NONE'"):
        execution_for(torch.device("cpu"))


def test_it_is_known_of_every_backend_whether_it_can_be_captured() -> None:
    unknown = "nobody has said"
    reasons = {name: backend_class(name).why_no_full_graph for name in BACKENDS}
    assert not [name for name, reason in reasons.items() if unknown in (reason or "")]
    assert unknown in str(AttentionBackend.why_no_full_graph)


def test_a_backend_that_cannot_be_captured_leaves_pieces_or_is_refused() -> None:
    flash = backend_class("flash")
    assert allowed_mode(FULL, backend_class("triton")) is FULL
    assert allowed_mode(PIECEWISE, flash) is PIECEWISE
    assert allowed_mode(NONE, flash) is NONE
    with pytest.raises(ConfigError, match=r"cudagraph_mode='FULL' with attention_backend='flash'"):
        allowed_mode(FULL, flash)
