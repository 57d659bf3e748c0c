"""What two states have in common is found, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.state.aliasing import Allowed, shared_memory, shared_objects  # noqa: E402
from pytest_cudafork.capture.state.snapshot import Snapshot  # noqa: E402
from pytest_cudafork.capture.state.state_tree import (  # noqa: E402
    Kind,
    walk,
)


@dataclasses.dataclass
class Meta:
    """Metadata with something lazy."""

    plan: Any = None
    ready: bool = False


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Fixed itself, what it holds may not be."""

    inner: Any


leaf = st.one_of(st.integers(), st.none(), st.text(max_size=3))


tree = st.recursive(
    leaf,
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.sampled_from("abc"), below, max_size=3),
        st.builds(Meta, below),
        st.builds(Frozen, below),
        st.tuples(below, below),
    ),
    max_leaves=12,
)


def copied(value: Any, keep: set[int]) -> Any:
    """Copy a tree, but not the mutable objects whose ids are to be kept."""
    if id(value) in keep:
        return value
    if isinstance(value, list):
        return [copied(one, keep) for one in value]
    if isinstance(value, dict):
        return {key: copied(one, keep) for key, one in value.items()}
    if isinstance(value, Meta):
        return Meta(copied(value.plan, keep))
    if isinstance(value, Frozen):
        return Frozen(copied(value.inner, keep))
    if isinstance(value, tuple):
        return tuple(copied(one, keep) for one in value)
    return value


@settings(deadline=None, max_examples=150)
@given(tree, st.data())
def test_exactly_the_outermost_shared_objects_are_found(value: Any, data: st.DataObject) -> None:
    root = {"root": value}
    mutable = [node for node in walk(root) if node.kind is Kind.MUTABLE][1:]
    chosen = data.draw(st.lists(st.sampled_from(mutable), max_size=3)) if mutable else []
    kept = {id(node.value) for node in chosen}
    other = copied(root, kept)
    found = {id(one.node.value) for one in shared_objects(Snapshot(root), Snapshot(other), no())}
    inner = {
        id(node.value)
        for one in chosen
        for node in list(walk(one.value))[1:]
        if node.kind is not Kind.VALUE
    }
    assert found == kept - inner


def no() -> Allowed:
    return Allowed(())


def test_what_is_allowed_may_be_shared() -> None:
    config, meta = {"layers": [1]}, Meta()
    one = Snapshot({"config": config, "meta": meta})
    two = Snapshot({"config": config, "meta": meta})
    assert [alias.path for alias in shared_objects(one, two, no())] == [
        "state['config']",
        "state['meta']",
    ]
    for allowed in (["state['config']"], [config], ["state[[]'config*"]):
        left = shared_objects(one, two, Allowed(allowed))
        assert [alias.path for alias in left] in (["state['meta']"], ["state['config']",
                                                                      "state['meta']"])  # fmt: skip
    assert not shared_objects(one, two, Allowed([config, meta]))


def test_tensors_are_compared_by_memory() -> None:
    buffer = torch.zeros(8)
    found = shared_memory(Snapshot({"a": buffer[:4]}), Snapshot({"b": buffer[2:]}))
    assert found == {"state['a']": "state['b']"}
