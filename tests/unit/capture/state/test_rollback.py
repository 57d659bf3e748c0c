"""The Python objects of a state go back to an earlier moment, and forth."""

from __future__ import annotations

import collections
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork.capture.state.rollback import Held, as_before  # noqa: E402
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
