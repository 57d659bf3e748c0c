"""How two moments of a state differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.state.snapshot import How, Snapshot, changes  # noqa: E402


@dataclasses.dataclass
class Meta:
    """Metadata with something lazy."""

    plan: Any = None
    ready: bool = False


def test_changes_are_told_by_kind() -> None:
    state: dict[str, Any] = {
        "meta": Meta(),
        "cache": {},
        "lens": torch.ones(2),
        "n": 1,
        "t": torch.ones(1),
    }
    before = Snapshot(state)
    state["meta"].plan = torch.ones(3)
    state["meta"].ready = True
    state["cache"]["k"] = [torch.ones(1)]
    state["lens"].add_(1)
    state["n"] = 2
    state["t"] = torch.zeros(1)
    found = {change.path: change.how for change in changes(before, Snapshot(state))}
    assert found == {
        "state['cache']": How.INITIALIZED,
        "state['cache']['k']": How.INITIALIZED,
        "state['meta'].plan": How.INITIALIZED,
        "state['meta'].ready": How.INITIALIZED,
        "state['lens']": How.WRITTEN,
        "state['n']": How.CHANGED,
        "state['t']": How.REPLACED,
    }
