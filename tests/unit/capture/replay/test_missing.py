"""The work of two recordings is compared: what one lacks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.backend import (  # noqa: E402
    GraphNode,
    Recording,
)
from pytest_cudafork.capture.replay.missing import (  # noqa: E402
    key,
    missing_nodes,
)

INIT, WORK, COPY = GraphNode("op", "init"), GraphNode("op", "work"), GraphNode("memcpy", "memcpy")


def recording(nodes: Any, uses: Any = ()) -> Recording:
    return Recording(None, nodes, uses)


def test_work_is_counted_and_copies_are_not() -> None:
    warm = recording((INIT, WORK, WORK, COPY))
    assert missing_nodes(warm, recording((WORK,))) == {("op", "init"): 1, ("op", "work"): 1}
    assert missing_nodes(recording(None), recording((WORK,))) == {}

    assert key(INIT) == ("op", "init")
