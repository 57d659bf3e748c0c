"""The walk over a state: every kind of object, each once, with the path a reader would write."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import threading
import time
import types
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.state import state_tree  # noqa: E402
from pytest_cudafork.capture.state.state_tree import (  # noqa: E402
    Kind,
    TooManyObjectsError,
    walk,
)


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass
class Meta:
    """Metadata with something lazy."""

    plan: Any = None
    ready: bool = False


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Fixed itself, what it holds may not be."""

    inner: Any


class Slots:
    """Without a dictionary."""

    __slots__ = ("a", "unset")

    def __init__(self, a: Any) -> None:
        self.a = a


class MoreSlots(Slots):
    """With slots of its own."""

    __slots__ = ("b",)


def paths(root: Any) -> set[str]:
    return {node.path for node in walk(root)}


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (Point(1, [torch.ones(1)]), "state.y[0]"),
        (Meta(plan=torch.ones(1)), "state.plan"),
        (Frozen({"k": torch.ones(1)}), "state.inner['k']"),
        ({"layers.0": Meta()}, "state['layers.0'].plan"),
        ({3: [[1, torch.ones(1)]]}, "state[3][0][1]"),
        (Slots(Meta()), "state.a.ready"),
        (MoreSlots(Meta()), "state.a.ready"),
        (types.SimpleNamespace(n=Meta()), "state.n.plan"),
        (collections.deque([Meta()]), "state[0].plan"),
        (functools.partial(print, Meta()), "state.args[0].plan"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "state.0.weight"),
        (collections.OrderedDict(a=Meta()), "state['a'].plan"),
    ],
)
def test_paths_read_as_one_would_write_them(root: Any, path: str) -> None:
    assert path in paths(root)


def test_msgspec_structs_are_walked() -> None:
    msgspec = pytest.importorskip("msgspec")
    cls = msgspec.defstruct("S", [("plan", Any), ("lens", Any)])
    cold = msgspec.defstruct("F", [("plan", Any)], frozen=True)
    assert {"state.plan", "state.lens[0]"} <= paths(cls(None, [torch.ones(1)]))
    assert state_tree.kind_of(cls(None, [])) is Kind.MUTABLE
    assert state_tree.kind_of(cold(None)) is Kind.FIXED


def test_attrs_classes_are_walked() -> None:
    attrs = pytest.importorskip("attrs")
    cls = attrs.make_class("A", {"plan": attrs.field()})
    cold = attrs.make_class("F", {"plan": attrs.field()}, frozen=True)
    assert "state.plan" in paths(cls(torch.ones(1)))
    assert state_tree.kind_of(cold(1)) is Kind.FIXED


def test_cycles_end_and_each_object_comes_once() -> None:
    a: dict[str, Any] = {"self": None, "again": None}
    a["self"] = a
    a["again"] = [a, a]
    assert paths(a) == {"state", "state['again']"}


def test_modules_functions_classes_and_locks_are_not_walked() -> None:
    held = {
        "module": types,
        "function": walk,
        "class": Meta,
        "method": Meta().__init__,  # type: ignore[misc]
        "lock": threading.Lock(),
        "logger": logging.getLogger(),
        "generator": torch.Generator(),
    }
    assert paths(held) == {"state", *(f"state['{name}']" for name in held)}


def test_a_property_is_not_called() -> None:
    class Trap:
        def __init__(self) -> None:
            self.kept = [torch.ones(1)]

        @property
        def boom(self) -> None:
            raise AssertionError

        def __getattr__(self, name: str) -> None:
            raise AssertionError(name)

    assert "state.kept[0]" in paths(Trap())


def test_containers_of_plain_values_count_as_one_object() -> None:
    assert len(paths({"n": list(range(1_000_000)), "d": {i: i for i in range(10_000)}})) == 3


@pytest.mark.slow
def test_too_many_objects_are_refused_soon_and_in_words() -> None:
    state = {"big": [[i] for i in range(1_000_000)]}
    begin = time.process_time()
    with pytest.raises(TooManyObjectsError, match=r"more than 100,000 objects.*state\['big'\]"):
        list(walk(state))
    assert time.process_time() - begin < 20


def test_what_is_skipped_is_not_entered() -> None:
    big = [[i] for i in range(200_000)]
    assert len(list(walk({"big": big, "meta": Meta()}, skip=[big]))) == 4


@pytest.mark.slow
def test_deep_nesting_costs_no_more_than_breadth_and_paths_stay_short() -> None:
    top: dict[str, Any] = {}
    deep = top
    for number in range(20_000):
        deep["a"] = {"number": number}
        deep = deep["a"]
    nodes = list(walk(top))
    assert len(nodes) == 40_001
    assert len({node.path for node in nodes}) == len(nodes)
    assert max(len(node.path) for node in nodes) < 1000
