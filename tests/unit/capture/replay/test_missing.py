"""The work of two recordings is compared: what one lacks, and what that work read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.backend import (  # noqa: E402
    GraphNode,
    MemoryUse,
    Recording,
)
from pytest_cudafork.capture.replay.missing import (  # noqa: E402
    inputs_read_by,
    key,
    missing_nodes,
)
from pytest_cudafork.capture.state.tensors import storage_of  # noqa: E402

X = torch.ones(4)
INIT, WORK, COPY = GraphNode("op", "init"), GraphNode("op", "work"), GraphNode("memcpy", "memcpy")


def use(pointer: int, node: int = 0, *, owned: bool = False) -> MemoryUse:
    return MemoryUse(pointer, 16, True, False, owned, "float32[4]", node)


def recording(nodes: Any, uses: Any = ()) -> Recording:
    return Recording(None, nodes, uses)


def test_work_is_counted_and_copies_are_not() -> None:
    warm = recording((INIT, WORK, WORK, COPY))
    assert missing_nodes(warm, recording((WORK,))) == {("op", "init"): 1, ("op", "work"): 1}
    assert missing_nodes(recording(None), recording((WORK,))) == {}


def test_inputs_that_missing_work_was_the_first_to_read() -> None:
    missing = Counter({key(INIT): 1})
    made, where = 99, storage_of(X)
    warm = recording((INIT, WORK), (use(where, 0), use(made, 1, owned=True)))
    captured = recording((WORK,), (use(made),))
    assert inputs_read_by(missing, warm, captured, {"x": X}) == ["x"]
    # What the warm-up has made is not used: its work was to choose or tune something.
    assert inputs_read_by(missing, warm, recording((WORK,), (use(7),)), {"x": X}) == []
    # The graph has such work: other calls of it do not count.
    assert inputs_read_by(missing, warm, recording((INIT,), (use(made),)), {"x": X}) == []
    assert inputs_read_by(missing, warm, recording((WORK,), None), {"x": X}) == []
