"""The memory that code writes beside what it returns."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import GraphUsageError  # noqa: E402
from pytest_cudafork.capture.interface.backend import (  # noqa: E402
    GraphNode,
    MemoryUse,
    Recording,
)
from pytest_cudafork.capture.state.written import (  # noqa: E402
    has_tensors,
    nothing_compared,
    refuse_lazy,
    written_by,
)
from tests.support.capture import iter_nothing  # noqa: E402


def use(tensor: Any, *, reads: bool = False, owned: bool = False) -> MemoryUse:
    pointer = tensor.untyped_storage().data_ptr()
    return MemoryUse(pointer, 8, reads, True, owned, "float32[2]", 0)


def test_whether_there_is_a_tensor() -> None:
    assert has_tensors({"a": [1, torch.ones(1)]})
    assert not has_tensors({"a": [1, None]})


def test_memory_has_the_path_that_is_known_else_its_type_and_line() -> None:
    known, hidden, own = torch.ones(2), torch.ones(2), torch.ones(2)
    part = hidden[:1]
    recording = Recording(
        None,
        (GraphNode("op", "aten::copy_", "/somewhere/engine.py:12"),),
        (use(known, reads=True), use(hidden), use(own, owned=True)),
    )
    written, read = written_by(recording, {"state.x": known})
    assert list(written) == ["state.x", "#1 float32[2] engine.py:12"]
    assert written["#1 float32[2] engine.py:12"] is hidden, "the biggest on that memory"
    assert read == {"state.x"}
    del part


def test_memory_is_found_where_objects_are_frozen() -> None:
    """A fork server freezes what its children begin with."""
    hidden = torch.ones(2)
    gc.freeze()
    try:
        written, _ = written_by(Recording(None, (), (use(hidden),)), {})
        assert next(iter(written.values())) is hidden
    finally:
        gc.unfreeze()


def test_what_is_not_known_is_nothing() -> None:
    assert written_by(Recording(None, None, None), {"x": torch.ones(1)}) == ({}, set())


def test_bodies_that_have_not_run_are_refused() -> None:
    async def coroutine() -> None: ...

    async def generator() -> Any:
        yield 1

    for made, kind in (
        (iter_nothing(), "a generator"),
        (coroutine(), "a coroutine"),
        (generator(), "an asynchronous generator"),
    ):
        with pytest.raises(GraphUsageError, match=f"fn returned {kind}"):
            refuse_lazy(made, "fn")
    refuse_lazy([1], "fn")


def test_a_check_that_looked_at_nothing_is_an_error() -> None:
    assert "this would pass whatever the graph does: a; b" in str(nothing_compared("a", "b"))
