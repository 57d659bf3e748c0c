"""The memory of software graphs: raw pointers to the outside, pools, poison."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import ReplayFailedError  # noqa: E402


def test_memory_from_outside_that_is_freed_is_an_error_with_tensor_op_and_line() -> None:
    held = [torch.ones(3, 5)]
    graph = SoftwareBackend().capture(lambda: held[0] + 1)
    graph.replay()
    held.clear()
    with pytest.raises(ReplayFailedError) as failure:
        graph.replay()
    finding = failure.value.finding
    assert finding.check == "freed-memory"
    assert "float32[3, 5]" in finding.what
    assert "aten::add" in finding.what
    assert Path(__file__).name in finding.where


def test_nothing_is_run_when_memory_is_gone() -> None:
    held, counter = [torch.ones(3)], torch.zeros(1)

    def fn() -> Any:
        counter.add_(1)
        return held[0] + 1

    graph = SoftwareBackend().capture(fn)
    held.clear()
    with pytest.raises(ReplayFailedError):
        graph.replay()
    assert counter.item() == 0


def test_a_tensor_that_was_given_other_memory_is_an_error() -> None:
    x = torch.ones(4)
    graph = SoftwareBackend().capture(lambda: x * 2)
    x.resize_(100_000)
    with pytest.raises(ReplayFailedError, match="resized"):
        graph.replay()
    y = torch.ones(4)
    graph = SoftwareBackend().capture(lambda: y * 2)
    y.data = torch.zeros(4)
    with pytest.raises(ReplayFailedError, match="was freed"):
        graph.replay()


def test_a_rebound_name_is_not_followed() -> None:
    inputs = {"x": torch.ones(3)}
    old = inputs["x"]
    graph = SoftwareBackend().capture(lambda: inputs["x"] * 2)
    inputs["x"] = torch.full((3,), 5.0)
    graph.replay()
    assert graph.recording.result.tolist() == [2, 2, 2]
    del old


def test_a_graph_does_not_keep_outside_memory_alive() -> None:
    held = [torch.ones(3)]
    graph = SoftwareBackend().capture(lambda: held[0] + 1)
    graph.replay()
    alive = weakref.ref(held.pop())
    assert alive() is None


def test_a_view_keeps_the_memory() -> None:
    base = torch.arange(6.0)
    view = base[2:4]
    graph = SoftwareBackend().capture(lambda: view * 2)
    base += 1
    del base
    graph.replay()
    assert graph.recording.result.tolist() == [6, 8]


@pytest.mark.slow
def test_results_are_static_and_survive_the_graph() -> None:
    x = torch.ones(3)
    graph = SoftwareBackend().capture(lambda: x + 1)
    result = graph.recording.result
    pointer = result.data_ptr()
    graph.replay()
    assert (result.data_ptr(), result.tolist()) == (pointer, [2, 2, 2])
    graph.reset()
    del graph
    gc.collect()
    torch.full((1000,), 7.0)
    assert result.tolist() == [2, 2, 2]


def test_memory_that_nothing_writes_is_poison_at_each_replay_and_is_named() -> None:
    x = torch.ones(4)

    def fn() -> Any:
        plan = torch.empty(4)
        return x + plan

    graph = SoftwareBackend().capture(fn)
    assert [each.check for each in graph.findings] == ["uninitialized-read"]
    assert Path(__file__).name in graph.findings[0].where
    for _ in range(2):
        graph.replay()
        assert graph.recording.result.isnan().all()


def test_what_is_written_in_part_is_poison_in_the_other_part_at_each_replay() -> None:
    x, flip = torch.ones(2), torch.zeros(1, dtype=torch.long)

    def fn() -> Any:
        buffer = torch.empty(4)
        buffer.index_copy_(0, flip, x[:1])
        return buffer * 1

    graph = SoftwareBackend().capture(fn)
    assert graph.findings == ()
    for place in (0, 3):
        flip.fill_(place)
        graph.replay()
        good = graph.recording.result.isnan().logical_not().nonzero().flatten()
        assert good.tolist() == [place]


def test_uses_tell_reads_writes_and_whose_memory_it_is() -> None:
    x, w, out = torch.ones(2, 3), torch.ones(3), torch.zeros(2, 3)

    def fn() -> Any:
        torch.mul(x, w, out=out)
        return out.sum()

    recording = SoftwareBackend().capture(fn).recording
    uses = {use.tensor: use for use in recording.uses or () if use.pointer != out.data_ptr()}
    assert (uses["float32[2, 3]"].reads, uses["float32[2, 3]"].writes) == (True, False)
    assert uses["float32[2, 3]"].pointer == x.data_ptr()
    assert (uses["float32[]"].owned, uses["float32[]"].writes) == (True, True)
    target = next(use for use in recording.uses or () if use.pointer == out.data_ptr())
    assert (target.reads, target.writes, target.owned, target.node) == (True, True, False, 0)
    assert target.nbytes == 24


def test_uses_of_a_recorded_run_are_those_of_the_capture() -> None:
    x, out = torch.ones(2, 3), torch.zeros(2, 3)
    backend = SoftwareBackend()

    def fn() -> Any:
        return out.copy_(x).relu().sum()

    eager, captured = backend.record(fn).uses, backend.capture(fn).recording.uses
    assert eager is not None
    assert captured is not None
    assert [use[2:] for use in eager] == [use[2:] for use in captured]
    assert [use.pointer for use in eager][:2] == [use.pointer for use in captured][:2]


def test_a_single_number_from_outside_is_read_at_each_replay() -> None:
    x, scale = torch.ones(3), torch.tensor(2.0)
    graph = SoftwareBackend().capture(lambda: x * scale)
    scale.fill_(5.0)
    graph.replay()
    assert graph.recording.result.tolist() == [5, 5, 5]


def test_a_number_of_the_host_is_taken_by_value() -> None:
    x, scale = torch.ones(3), torch.tensor(2.0)
    graph = SoftwareBackend(host_scalars=[scale]).capture(lambda: x * scale)
    scale.fill_(5.0)
    graph.replay()
    assert graph.recording.result.tolist() == [2, 2, 2]


def test_an_index_out_of_range_in_a_replay_names_the_operator_and_the_line() -> None:
    table, index = torch.ones(3, 2), torch.zeros(2, dtype=torch.long)
    graph = SoftwareBackend().capture(lambda: torch.nn.functional.embedding(index, table))
    index.fill_(99)
    with pytest.raises(ReplayFailedError, match="aten::embedding") as failure:
        graph.replay()
    assert Path(__file__).name in failure.value.finding.where
    index.fill_(2)
    graph.replay()


@pytest.mark.slow
def test_a_cycle_of_garbage_does_not_keep_the_memory_of_a_graph() -> None:
    x = torch.ones(3)
    graph = SoftwareBackend().capture(lambda: x + 1)
    alive = weakref.ref(graph._pool)
    graph.reset()
    del graph
    gc.collect()
    assert alive() is None


def test_a_replay_within_a_capture_becomes_part_of_it() -> None:
    x, backend = torch.ones(3), SoftwareBackend()
    inner = backend.capture(lambda: x + 1)

    def fn() -> Any:
        inner.replay()
        return inner.recording.result * 2

    outer = backend.capture(fn)
    x.fill_(4)
    outer.replay()
    assert outer.recording.result.tolist() == [10] * 3
