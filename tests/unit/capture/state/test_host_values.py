"""Numbers and texts of Python that code carries, and which of them have changed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.state import state_tree  # noqa: E402
from pytest_cudafork.capture.state.host_values import (  # noqa: E402
    carried_values,
    host_values,
    what_changed,
)


class Model:
    """An object with values of several kinds."""

    def __init__(self) -> None:
        self.scale, self.name, self.none = 2.0, "a model", None
        self.weight = torch.ones(2)
        self.sizes = [1, 2]
        self.dtype = torch.float32


def test_plain_values_are_found_by_path_and_tensors_are_not() -> None:
    found = host_values({"model": Model()})
    assert found == {
        "model.scale": 2.0, "model.name": "a model", "model.none": None, "model.sizes": [1, 2]
    }  # fmt: skip


def test_what_hangs_below_two_roots_is_found_once() -> None:
    model = Model()
    assert not any(path.startswith("b") for path in host_values({"a": model, "b": model}))


def test_what_is_too_big_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_tree, "MOST_OBJECTS", 2)
    assert host_values({"model": Model(), "number": 3})["number"] == 3


def test_what_a_function_carries_counts_too() -> None:
    factor = 3

    def fn(x: Any) -> Any:
        return x * factor

    assert carried_values({"inputs": [4]}, fn, "fn.") == {"inputs": [4], "fn.factor": 3}


def test_changes_are_told_with_both_values_four_at_most() -> None:
    then = {f"x{n}": n for n in range(6)}
    assert what_changed(then, dict(then)) == ""
    assert what_changed(then, {**then, "x1": 7, "new": 1}).endswith(": x1 (1 -> 7)")
    told = what_changed(then, dict.fromkeys(then, -1))
    assert told.endswith("x3 (3 -> -1) and 2 more")
