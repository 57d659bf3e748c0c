"""Memory of captures is lent, comes back and is lent again, as CUDA's private pools do."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import ReplayFailedError  # noqa: E402


def test_two_captures_on_one_pool_share_memory_that_was_freed_between() -> None:
    """The class of bugs in which an early graph's output is overwritten by a later graph."""
    backend, x, kept = SoftwareBackend(), torch.ones(8), []
    pool = backend.new_pool()
    first = backend.capture(lambda: kept.append(x + 1), pool=pool)
    pointer = kept[0].data_ptr()
    kept.clear()  # the caller holds the address only, as a weak reference to an output does
    second = backend.capture(lambda: x * 100, pool=pool)
    assert second.recording.result.data_ptr() == pointer
    second.replay()
    assert second.recording.result[0] == 100
    first.replay()
    assert second.recording.result[0] == 2


def test_outputs_that_are_held_and_other_pools_share_nothing() -> None:
    backend, x = SoftwareBackend(), torch.ones(8)
    pool = backend.new_pool()
    first = backend.capture(lambda: x + 1, pool=pool)
    second = backend.capture(lambda: x * 100, pool=pool)
    third = backend.capture(lambda: x * 100)
    pointers = {each.recording.result.data_ptr() for each in (first, second, third)}
    assert len(pointers) == 3
    for each in (first, second, third, first):
        each.replay()
    assert first.recording.result[0] == 2


def test_intermediate_memory_is_used_again_within_a_capture() -> None:
    x = torch.ones(1000)

    def fn() -> Any:
        y = x
        for _ in range(20):
            y = y + 1
        return y

    graph = SoftwareBackend().capture(fn)
    owned = {use.pointer for use in graph.recording.uses or () if use.owned}
    assert len(owned) <= 3
    for _ in range(2):
        graph.replay()
        assert graph.recording.result[0] == 21


def test_a_second_graph_on_a_pool_reads_what_the_first_left_there() -> None:
    """Saved tensors of a forward graph die with the backward pass; both graphs use the pool."""
    backend, x, saved = SoftwareBackend(), torch.ones(4), []
    pool = backend.new_pool()
    first = backend.capture(lambda: saved.append(x + 1), pool=pool)
    second = backend.capture(lambda: saved[0] * 10, pool=pool)
    saved.clear()
    first.replay()
    second.replay()
    assert second.recording.result.tolist() == [20] * 4


def test_a_graph_on_another_pool_does_not_keep_it() -> None:
    backend, x, saved = SoftwareBackend(), torch.ones(4), []
    first = backend.capture(lambda: saved.append(x + 1))
    second = backend.capture(lambda: saved[0] * 10)
    saved.clear()
    first.replay()
    with pytest.raises(ReplayFailedError, match="was freed"):
        second.replay()
