"""Whose memory recorded work uses, and whether it is still there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


SEGMENTS = [
    {
        "address": 1000,
        "segment_pool_id": (0, 0),
        "blocks": [
            {"address": 1000, "size": 100, "state": "active_allocated"},
            {"address": 1100, "size": 100, "state": "inactive"},
        ],
    },
    {
        "address": 5000,
        "segment_pool_id": (0, 3),
        "blocks": [{"size": 100, "state": "active_allocated"}, {"size": 50, "state": "inactive"}],
    },
]


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        (999, None),
        (1000, (True, (0, 0))),
        (1099, (True, (0, 0))),
        (1100, (False, (0, 0))),
        (1200, None),
        (5000, (True, (0, 3))),
        (5120, (False, (0, 3))),
    ],
)
def test_an_address_belongs_to_a_pool_or_to_somebody_else(pointer: int, found: Any) -> None:
    from pytest_cudafork.capture.cuda.memory import AllocatorMap

    assert AllocatorMap(SEGMENTS).find(pointer) == found
    assert AllocatorMap([]).find(pointer) is None


def tracked(pointer: int, *, made: bool) -> Any:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    from pytest_cudafork.capture.cuda.memory import Tracked

    weak = StorageWeakRef(torch.ones(1).untyped_storage())
    return Tracked(weak, pointer, 4, "cuda:0", "float32[1]", [0], "user.py:1", True, made)


def test_memory_is_the_graphs_own_or_somebody_elses() -> None:
    from pytest_cudafork.capture.cuda.memory import AllocatorMap, outside_pool, settle

    before, after = AllocatorMap(SEGMENTS[:1]), AllocatorMap(SEGMENTS)
    held = tracked(1000, made=False)
    cached = tracked(1000, made=True)  # an operator returned what was there before
    fresh = tracked(1100, made=True)
    pooled, compiled = tracked(5000, made=True), tracked(5000, made=False)
    foreign = tracked(9000, made=False)
    everything = [held, cached, fresh, pooled, compiled, foreign]
    settle(everything, before, after)
    assert [one.owned for one in everything] == [False, False, True, True, True, False]
    findings = outside_pool(everything, lambda step: True)
    assert [finding.check for finding in findings] == ["outside-pool"]
    assert "0x44c" in findings[0].what
    assert outside_pool(everything, lambda step: False) == []


def test_freed_and_moved_memory_is_found_and_memory_of_others_is_not() -> None:
    import torch

    from pytest_cudafork.capture.cuda.memory import (
        Storages,
        Tracked,
        gone,
        needed_from_outside,
    )

    kept, freed, moved = torch.ones(64), torch.ones(64), torch.ones(64)
    storages = Storages()
    for tensor in (kept, freed, moved):
        storages.note(tensor, 0, "user.py:1", reads=True)

    def needed(captured: bool, copied: bool, pinned: bool) -> list[Tracked]:
        return needed_from_outside(
            storages, lambda step: captured, copied=lambda pointer: copied,
            pinned=lambda pointer: pinned,
        )  # fmt: skip

    outside = needed(captured=True, copied=True, pinned=False)
    assert gone(outside) == []
    del freed, tensor
    moved.resize_(1 << 20)
    found = gone(outside)
    assert [finding.check for finding in found] == ["freed-memory"] * 2
    assert "has been freed" in found[0].what
    assert "has moved to" in found[1].what
    assert needed(captured=False, copied=True, pinned=False) == []
    assert gone(needed(captured=True, copied=False, pinned=False)) == []
    assert kept is not None


def test_pinned_memory_outlives_a_graph_unless_it_was_made_within() -> None:
    import torch

    from pytest_cudafork.capture.cuda.memory import Storages, gone, needed_from_outside

    before, within = torch.ones(64), torch.ones(64)
    storages = Storages()
    storages.note(before, 0, "user.py:1", reads=True)
    storages.note(within, 0, "user.py:2", reads=True)
    for tracked in storages:
        tracked.owned = tracked.where == "user.py:2"
    outside = needed_from_outside(
        storages, lambda step: True, copied=lambda pointer: True, pinned=lambda pointer: True
    )
    del before, within
    (found,) = gone(outside)
    assert found.where == "user.py:1"
    assert "a pinned tensor that lives as long as the graph" in found.todo
