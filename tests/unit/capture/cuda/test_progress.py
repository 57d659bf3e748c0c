"""How far a graph grows at each step, and where a capture breaks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


class Driver:
    """Stands in for libcuda: the state of two streams, and the size of a graph."""

    def __init__(self) -> None:
        self.size = 0
        self.active = {7: True}
        self.refuses = False

    def status(self, stream: int) -> Any:
        from pytest_cudafork.capture.cuda.libcuda import CaptureStatus

        return CaptureStatus.ACTIVE if self.active.get(stream) else CaptureStatus.NONE

    def graph_in_progress(self, stream: int) -> int:
        return 1

    def count(self, graph: int) -> int:
        from pytest_cudafork.capture.cuda.libcuda import DriverError

        if self.refuses:
            raise DriverError("cuGraphGetNodes", 1)
        return self.size


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The handle of the current stream, to be changed."""
    import torch

    current = [7]
    stream = type("Stream", (), {"cuda_stream": property(lambda self: current[0])})
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    return current


@pytest.fixture
def progress(driver: Driver, streams: list[int]) -> Any:
    from pytest_cudafork.capture.cuda.progress import Progress

    return Progress(driver, 7)  # type: ignore[arg-type]


def step(name: str = "aten.add", where: str = "a.py:1") -> Any:
    from pytest_cudafork.capture.cuda.steps import Step

    return Step(name, where, launches=True)


def test_a_step_has_the_nodes_that_it_added(progress: Any, driver: Driver) -> None:
    steps = [step(where="a.py:1"), step(where="a.py:2"), step(where="")]
    for index, nodes in enumerate((2, 0, 1)):
        progress.before(index, steps[index])
        driver.size += nodes
        progress.after(index, steps[index])
    assert [(one.first, one.end) for one in progress.grown] == [(0, 2), (2, 2), (2, 3)]
    assert [progress.captured(index) for index in range(3)] == [True, False, True]
    assert progress.lines(steps, 3) == ["a.py:1", "a.py:1", ""]
    assert progress.broken is None


def test_a_step_within_another_is_nearer(progress: Any, driver: Driver) -> None:
    steps = [step(where="outer"), step(where="inner")]
    progress.before(0, steps[0])
    progress.before(1, steps[1])
    driver.size = 1
    progress.after(1, steps[1])
    progress.after(0, steps[0])
    assert progress.lines(steps, 1) == ["inner"]


@pytest.mark.parametrize("before", [True, False])
def test_the_step_that_broke_the_capture(progress: Any, driver: Driver, before: bool) -> None:
    driver.size = 4
    if before:
        driver.active[7] = False
    progress.before(0, step())
    driver.active[7] = False
    progress.after(0, step())
    assert progress.broken == (0, before)
    progress.before(1, step())
    assert progress.grown[1].first == progress.grown[0].end, "a broken graph is not counted"


def test_a_driver_that_does_not_count_costs_the_lines_only(progress: Any, driver: Driver) -> None:
    driver.refuses = True
    progress.before(0, step())
    progress.after(0, step())
    assert (progress.grown[0].first, progress.grown[0].end) == (0, 0)
    assert progress.broken is None


def test_work_on_other_streams(progress: Any, driver: Driver, streams: list[int]) -> None:
    steps = [step(f"aten.op{n}", "b.py:4") for n in range(5)]
    for index, stream in enumerate((9, 9, 9, 9, 8)):
        driver.active[8] = True
        streams[0] = stream
        progress.before(index, steps[index])
        progress.after(index, steps[index])
    (found,) = progress.left_out(steps)
    assert found.check == "not-captured"
    assert found.what.startswith("aten.op0, aten.op1, aten.op2 and 1 more ran on a stream")
    assert progress.last_on_another_stream(steps) == "b.py:4"
    assert progress.last_on_another_stream([]) == ""
