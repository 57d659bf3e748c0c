"""The Python objects of a state go back to an earlier moment, and forth."""

from __future__ import annotations

import collections
import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork.capture.state.rollback import Carried, Held, as_before  # noqa: E402
from pytest_cudafork.capture.state.state_tree import walk  # noqa: E402


class Ids:
    """An allocator of which a half that is put back fails at once."""

    def __init__(self) -> None:
        self.last = 0
        self.live: dict[int, object] = {}
        self.log: list[Any] = []

    def new(self) -> None:
        self.last += 1
        assert self.last not in self.live
        self.live[self.last] = object()
        self.log.append((self.last, "new"))
        assert len(self.live) == len(self.log) == self.last


class Slots:
    """An object whose second slot is empty at first."""

    __slots__ = ("late", "x")

    def __init__(self) -> None:
        self.x = 1


def test_all_objects_of_a_state_are_put_back_for_a_while() -> None:
    state: dict[str, Any] = {
        "list": [object()], "set": {1}, "deque": collections.deque([object()]), "slots": Slots(),
        "ordered": collections.OrderedDict(a=object()), "module": torch.nn.Linear(1, 1),
        "bytes": bytearray(b"ab"), "ids": Ids(),
    }  # fmt: skip
    held = Held(walk(state))
    kept = dict(state)
    state["list"].append(2)
    state["set"].add(2)
    state["deque"].clear()
    state["slots"].x, state["slots"].late = 2, 3
    state["ordered"]["b"] = 1
    state["module"].extra = 1
    state["bytes"].extend(b"c")
    state["ids"].new()
    state["more"] = 1
    with as_before(held, list(walk(state))):
        assert state == kept
        assert len(state["list"]) == len(state["set"]) == len(state["deque"]) == 1
        assert state["slots"].x == 1 and not hasattr(state["slots"], "late")  # noqa: PT018
        assert list(state["ordered"]) == ["a"]
        assert not hasattr(state["module"], "extra")
        assert state["bytes"] == b"ab"
        assert state["ids"].last == 0
        state["ids"].new()
    assert state["more"] == state["module"].extra == state["ids"].last == 1
    assert (state["slots"].x, state["slots"].late) == (2, 3)
    assert len(state["list"]) == 2 and not state["deque"]  # noqa: PT018
    assert list(state["ordered"]) == ["a", "b"]


def test_what_a_callable_carries_is_put_back_if_it_has_changed() -> None:
    numbers, layer, tensor = [1], Layer(), torch.zeros(2)

    def fn() -> Any:
        return numbers, layer, tensor

    carried = Carried(fn)
    assert not carried.has_changed()
    tensor.add_(1)
    assert not carried.has_changed(), "contents of tensors are looked at elsewhere"
    numbers.append(2)
    assert carried.has_changed()
    layer.plan = tensor
    with carried.as_before():
        assert (numbers, layer.plan) == ([1], None)
    assert numbers == [1, 2]
    assert layer.plan is tensor


@pytest.mark.parametrize("change", ["plan", "count", "new"])
def test_any_change_of_an_object_counts(change: str) -> None:
    layer = Layer()
    carried = Carried(lambda: layer)
    setattr(layer, change, 5)
    assert carried.has_changed()


@pytest.mark.slow
def test_a_tensor_is_not_kept_alive_by_what_is_put_back() -> None:
    layer = Layer()
    layer.plan = torch.zeros(2)
    alive = weakref.ref(layer.plan)
    carried = Carried(lambda: layer)
    layer.plan = None
    gc.collect()
    assert alive() is None
    layer.count = 3
    with carried.as_before():
        assert (layer.plan, layer.count) == (None, 0)
    assert layer.count == 3


def test_defaults_are_no_change() -> None:
    def fn(tensor: Any = torch.zeros(1)) -> Any:  # noqa: B008
        return tensor

    assert not Carried(fn).has_changed()


def test_what_is_too_big_is_left_alone() -> None:
    big = [[number] for number in range(100_001)]
    carried = Carried(lambda: big)
    assert not carried.has_changed()
    with carried.as_before():
        pass


class Layer:
    """Keeps what it makes."""

    def __init__(self) -> None:
        self.plan: Any = None
        self.count = 0


def test_another_tensor_at_the_address_of_one_that_is_gone_is_a_change() -> None:
    holder = collections.UserDict({"cache": torch.zeros(2)})
    collects = gc.isenabled()
    gc.disable()  # what else it frees would be used first
    try:
        for _ in range(10_000):
            carried = Carried(lambda: holder)
            assert not carried.has_changed()
            before = id(holder["cache"])
            holder["cache"] = None
            holder["cache"] = torch.zeros(2)  # gets, as a rule, what has just been freed
            assert carried.has_changed()
            if id(holder["cache"]) == before:
                return
    finally:
        if collects:
            gc.enable()
    pytest.fail("no address was handed out again")
