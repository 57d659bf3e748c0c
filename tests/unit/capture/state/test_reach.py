"""What a function can reach beside its inputs, and which of it has moved."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import GraphUsageError  # noqa: E402
from pytest_cudafork.capture.cuda.backend import CudaBackend  # noqa: E402
from pytest_cudafork.capture.interface.backend import MemoryUse  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.state import state_tree  # noqa: E402
from pytest_cudafork.capture.state.reach import (  # noqa: E402
    check_devices,
    moved,
    reachable,
    storages,
)


def test_tensors_and_generators_of_a_closure() -> None:
    x, weights, generator = torch.ones(4), {"w": torch.ones(2)}, torch.Generator()

    def fn() -> Any:
        return x, x[1:], weights, generator

    found = reachable(fn)
    assert list(found.tensors) == ["weights['w']", "x"]
    assert found.generators == [generator]
    assert list(reachable(fn, [x[:2]]).tensors) == ["weights['w']"]


def test_what_holds_too_many_objects_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_tree, "MOST_OBJECTS", 3)
    many, x, notes = [[torch.ones(1)] for _ in range(9)], torch.ones(1), list[str]()

    def fn() -> Any:
        return many, x

    assert list(reachable(fn, note=notes.append).tensors) == ["x"]
    assert notes[0].startswith("tensors below many were not looked for")
    assert list(reachable(fn).tensors) == ["x"]


def test_tensors_that_lie_elsewhere_now() -> None:
    x, y = torch.ones(1), torch.ones(1)
    before = storages({"a": x, "b": y, "gone": y})
    now = storages({"a": y, "b": y})
    where = before["a"]
    assert moved(before, now, None) == [("a", where, before["b"])]
    use = MemoryUse(where, 4, True, False, False, "float32[1]", 0)
    assert moved(before, now, [use]) == [("a", where, before["b"])]
    assert moved(before, now, [use._replace(reads=False)]) == []
    assert moved(before, now, [use._replace(owned=True)]) == []


def test_tensors_of_a_check_lie_on_one_device() -> None:
    x, elsewhere = torch.ones(1), torch.ones(1, device="meta")
    here, there = SoftwareBackend(), CudaBackend()
    check_devices({"x": x}, here, "the inputs")
    with pytest.raises(
        GraphUsageError, match="the inputs lie on 2 devices: x on cpu and y on meta"
    ):
        check_devices({"x": x, "y": elsewhere}, here, "the inputs")
    with pytest.raises(GraphUsageError, match="x lies on cpu, and the graphs of this backend"):
        check_devices({"x": x}, there, "the inputs")
    with pytest.raises(GraphUsageError, match="without plain memory"):
        check_devices({"x": torch.ones(1).to_sparse()}, here, "the inputs")
