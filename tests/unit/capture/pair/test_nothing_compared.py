"""A check that compared nothing is no success; what a forward writes is compared if need be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError, GraphUsageError, ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402
from pytest_cudafork.capture.interface.lines import place  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def pair(forward: Any, state: Any = None, **options: Any) -> Any:
    create = lambda desc, warmup: (forward, {} if state is None else state)  # noqa: E731
    return capture_pair(create, 1, backend="software", **options)


class Engine:
    """Its buffer is an attribute of the class: nothing that the forward carries leads to it."""

    out = torch.zeros(4)
    scale = 2.0


def write(x: Any = X) -> None:
    """Write into memory that only the recording knows."""
    Engine.out.copy_(x * Engine.scale)


def test_a_function_without_results_is_no_success() -> None:
    for fn in (lambda x: None, lambda x: 3.0):
        with pytest.raises(GraphUsageError, match=r"nothing was compared.*lack a return"):
            compare(fn, [X], backend="software")
    with pytest.raises(GraphUsageError, match="eager returned no tensor"):
        compare(lambda x: x * 2, [X], eager=lambda x: None, backend="software")
    with pytest.raises(GraphUsageError, match="outputs=lambda"):
        pair(lambda: None)


def generator(x: Any = X) -> Any:
    yield x


async def coroutine(x: Any = X) -> Any:
    return x


async def both(x: Any = X) -> Any:
    yield x


@pytest.mark.parametrize("fn", [generator, coroutine, both])
def test_a_body_that_did_not_run_is_told(fn: Any) -> None:
    with pytest.raises(GraphUsageError, match=r"fn returned .*has not run"):
        compare(fn, [X], backend="software")
    with pytest.raises(GraphUsageError, match=r"eager returned .*has not run"):
        compare(lambda x: x * 2, [X], eager=fn, backend="software")
    with pytest.raises(GraphUsageError, match=r"forward_fn returned .*has not run"):
        pair(fn)
    with pytest.raises(GraphUsageError, match=r"vary\[0\].* returned .*has not run"):
        compare(lambda x: x * 2, [X], vary=[fn], backend="software")


@pytest.mark.slow
def test_memory_that_a_forward_writes_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "scale", 2.0)

    def grow() -> None:
        Engine.scale = 5.0

    pair(write)
    with pytest.raises(CapturePairError, match="looks frozen") as caught:
        pair(write, vary=[grow])
    (found,) = caught.value.findings
    assert f"float32[4] {Path(__file__).name}"[:30] in found.path
    assert found.where.startswith(place(__file__, 0)[:-1])
    Engine.scale = 2.0
    compare(write, [X], backend="software")
    with pytest.raises(ReplayDiffersError, match="looks frozen"):
        compare(write, [X], vary=[grow], backend="software")


def test_memory_that_a_forward_adds_to_is_compared() -> None:
    kept = Engine.out.clone()
    compare(add, [X], backend="software")
    Engine.out.copy_(kept)


def add(x: Any) -> None:
    """Read and write the buffer."""
    Engine.out.add_(x)


def test_memory_of_each_state_is_compared_by_its_path() -> None:
    def create(desc: int, warmup: bool) -> Any:
        state = {"out": torch.empty(8)}

        def forward() -> None:
            state["out"][:4].copy_(X * Engine.scale)

        return forward, state

    capture_pair(create, 1, backend="software")

    def grow() -> None:
        Engine.scale = 5.0

    try:
        with pytest.raises(CapturePairError) as caught:
            capture_pair(create, 1, vary=[grow], backend="software")
    finally:
        Engine.scale = 2.0
    assert ["state['out']" in one.path for one in caught.value.findings] == [True]


def test_a_replay_that_leaves_the_written_memory_alone_is_found() -> None:
    calls: list[int] = []

    def once() -> None:
        calls.append(1)
        if len(calls) != 2:  # not in the capture
            Engine.out.copy_(X)

    with pytest.raises((CapturePairError, GraphUsageError)):
        pair(once)


def test_a_vary_that_changes_nothing_is_told() -> None:
    n = torch.ones(4)
    with pytest.warns(match=r"vary\[0\].*tests nothing"):
        compare(lambda n: n * 2, [n], vary=[lambda: n + 1], backend="software")
    with pytest.warns(match=r"vary\[0\].*tests nothing"):
        pair(lambda: n * 2, persistent={"n": n}, vary=[lambda: None])


def test_a_persistent_tensor_that_nobody_reads_is_not_checked() -> None:
    report = pair(lambda: X * 2, persistent={"x": X, "unused": torch.ones(2)}).report
    assert report.not_checked["not-shared (persistent['unused'])"] == "neither pass reads it"
