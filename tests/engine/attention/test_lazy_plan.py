"""The lazily planned backend is exact, plans once for a batch, and only when it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sample_engine.attention.interface import LayerCache
from sample_engine.attention.lazy_plan import LazyPlanBackend
from sample_engine.attention.reference import ReferenceBackend
from tests.engine.support.attention import Batch, Shape, batch_of, error, run

DECODE = [(1, 40), (1, 1), (1, 17)]


def _again(batch: Batch, backend: LazyPlanBackend, metadata: Any) -> torch.Tensor:
    out = torch.full_like(batch.query, float("nan"))
    backend.forward(batch.query, batch.cache, metadata, out)
    return out


@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 40)).map(lambda at: (at[0], sum(at))),
        min_size=1,
        max_size=5,
    ),
    heads=st.sampled_from([(6, 2), (4, 4), (4, 1)]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    page=st.sampled_from([4, 16]),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_it_computes_what_the_reference_computes(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    dtype: torch.dtype,
    page: int,
    padding: tuple[int, int],
    seed: int,
) -> None:
    shape = Shape(*heads, page=page, dtype=dtype)
    batch = batch_of(shape, lengths, seed=seed, pad_reqs=padding[0], pad_tokens=padding[1])
    out = run(LazyPlanBackend(shape.spec), batch, fill=7.0)
    expected = run(ReferenceBackend(shape.spec), batch, fill=7.0)
    torch.testing.assert_close(out, expected)
    assert error(out, batch) < (1e-6 if dtype == torch.float32 else 2e-3)


def test_there_is_no_plan_before_the_first_layer_and_one_plan_for_all_layers() -> None:
    batch = batch_of(Shape(), DECODE)
    backend = LazyPlanBackend(batch.shape.spec)
    metadata = backend.build(batch.common)
    assert metadata.plan is None
    first = _again(batch, backend, metadata)
    plan = metadata.plan
    assert plan is not None
    memory = [each.data_ptr() for each in plan.splits.tensors]
    second = _again(batch, backend, metadata)
    assert metadata.plan is plan
    assert [each.data_ptr() for each in plan.splits.tensors] == memory
    assert torch.equal(first, second)


def test_each_batch_has_a_plan_of_its_own() -> None:
    batch = batch_of(Shape(), DECODE)
    backend = LazyPlanBackend(batch.shape.spec)
    warmup, captured = backend.build(batch.common), backend.build(batch.common)
    _again(batch, backend, warmup)
    assert captured.plan is None
    _again(batch, backend, captured)
    assert warmup.plan is not None
    assert captured.plan is not None
    shared = {each.data_ptr() for each in warmup.plan.splits.tensors}
    assert shared.isdisjoint(each.data_ptr() for each in captured.plan.splits.tensors)
    assert warmup.plan.partial_out.data_ptr() != captured.plan.partial_out.data_ptr()


def test_the_result_hangs_on_the_plan() -> None:
    batch = batch_of(Shape(), DECODE)
    backend = LazyPlanBackend(batch.shape.spec)
    metadata = backend.build(batch.common)
    _again(batch, backend, metadata)
    assert metadata.plan is not None
    metadata.plan.splits.item_stop.fill_(1)  # a plan that somebody else's batch left behind
    assert not error(_again(batch, backend, metadata), batch) < 1e-2


class Recorded(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """The operations that ran; refuses those that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Note the operation and run it."""
        del types
        name = func._schema.name
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"), name
        self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_only_the_first_forward_pass_runs_the_planner_and_nothing_waits_for_the_device() -> None:
    batch = batch_of(Shape(), DECODE)
    backend = LazyPlanBackend(batch.shape.spec)
    metadata = backend.build(batch.common)
    with Recorded() as first:
        _again(batch, backend, metadata)
    with Recorded() as second:
        _again(batch, backend, metadata)
    assert "aten::cumsum" in first.names
    assert "aten::cumsum" not in second.names
    assert first.names[-len(second.names) + 1 :] == second.names[1:]


@pytest.mark.parametrize("queries", [1, 4], ids=["decode", "drafts"])
def test_metadata_that_is_planned_anew_follows_lengths_that_changed_in_place(queries: int) -> None:
    batch = batch_of(Shape(), [(queries, 40), (queries, 33)], seed=1)
    backend = LazyPlanBackend(batch.shape.spec)
    metadata = backend.build(batch.common)
    _again(batch, backend, metadata)
    shorter = batch_of(Shape(), [(1, 3), (1, 30)], seed=2)
    for old, new in (
        (batch.common.seq_lens, shorter.common.seq_lens),
        (batch.common.query_start_loc, shorter.common.query_start_loc),
        (batch.common.block_table[:, :2], shorter.common.block_table),
    ):
        old.copy_(new)
    batch.query[:2] = shorter.query
    batch.common.block_table[:, 2:] = 0
    out = torch.full_like(batch.query, 7.0)
    metadata.plan = None
    backend.forward(batch.query, LayerCache(*shorter.cache), metadata, out)
    assert error(out[:2], shorter) < 1e-6
    assert torch.equal(out[2:], torch.full_like(out[2:], 7.0))
