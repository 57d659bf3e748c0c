"""Side streams within a capture: forked, joined, forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from pytest_cudafork.capture.stand_ins.in_force import in_force  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError  # noqa: E402

CUDA = torch.cuda


@pytest.fixture(autouse=True)
def stand_ins() -> Iterator[None]:
    with in_force():
        yield


def captured(work: Any, side: Any = None) -> Any:
    """Capture ``work(x, side)``; return what a replay leaves and what eager code gives."""
    x, graph = torch.ones(3), CUDA.CUDAGraph()
    side = CUDA.Stream() if side is None else side
    with CUDA.graph(graph):
        result = work(x, side)
    x.fill_(2)
    graph.replay()
    return result, work(x, side)


def waits_for_streams(x: Any, side: Any) -> Any:
    main = CUDA.current_stream()
    side.wait_stream(main)
    with CUDA.stream(side):
        other = x * 2
        other.record_stream(main)
    mine = x + 1
    main.wait_stream(side)
    return mine + other


def waits_for_events(x: Any, side: Any) -> Any:
    begun, done = CUDA.Event(), CUDA.Event()
    begun.record()
    with CUDA.stream(side):
        begun.wait()
        other = x * 2
        done.record()
    CUDA.current_stream().wait_event(done)
    return x + other


def waits_by_way_of_another(x: Any, side: Any) -> Any:
    main, third = CUDA.current_stream(), CUDA.Stream()
    side.wait_event(main.record_event())
    with side:
        other = x * 2
    third.wait_event(side.record_event())
    with CUDA.stream(third):
        more = other + 1
    main.wait_stream(third)
    return x + more


def forks_for_nothing(x: Any, side: Any) -> Any:
    side.wait_stream(CUDA.current_stream())
    return x + 1


@pytest.mark.parametrize(
    "work", [waits_for_streams, waits_for_events, waits_by_way_of_another, forks_for_nothing]
)
def test_side_streams_that_are_joined_are_captured(work: Any) -> None:
    replayed, eager = captured(work)
    assert replayed.tolist() == eager.tolist()


def never_joined(x: Any, side: Any) -> Any:
    side.wait_stream(CUDA.current_stream())
    with CUDA.stream(side):
        x * 2
    return x + 1


def joined_before_its_last_work(x: Any, side: Any) -> Any:
    main = CUDA.current_stream()
    side.wait_stream(main)
    with CUDA.stream(side):
        first = x * 2
    main.wait_stream(side)
    with CUDA.stream(side):
        x * 3
    return first


def one_of_two_is_joined(x: Any, side: Any) -> Any:
    main, third = CUDA.current_stream(), CUDA.Stream()
    for stream in (side, third):
        stream.wait_stream(main)
        with CUDA.stream(stream):
            x * 2
    main.wait_stream(side)
    return x


@pytest.mark.parametrize("work", [never_joined, joined_before_its_last_work, one_of_two_is_joined])
def test_work_that_is_not_joined_is_refused_with_its_line(work: Any) -> None:
    with pytest.raises(CaptureFailedError, match=r"not joined to\s+the captured\s+one") as failed:
        captured(work)
    finding = failed.value.finding
    assert finding.check == "capture-failed"
    assert "test_forks.py:" in finding.where


def works_elsewhere(x: Any, side: Any) -> Any:
    with CUDA.stream(side):
        return x * 2


def works_on_the_default_stream(x: Any, side: Any) -> Any:
    with CUDA.stream(CUDA.default_stream()):
        return x * 2


def waits_for_a_stream_outside(x: Any, side: Any) -> Any:
    CUDA.current_stream().wait_stream(side)
    return x * 2


@pytest.mark.parametrize(
    "work", [works_elsewhere, works_on_the_default_stream, waits_for_a_stream_outside]
)
def test_streams_without_part_in_the_capture_are_not_judged(work: Any) -> None:
    with pytest.raises(GraphNotJudgedError, match=r"without\s+part in the capture"):
        captured(work)


def test_an_event_of_before_the_capture_is_not_judged() -> None:
    event = CUDA.Event()
    event.record()
    with pytest.raises(GraphNotJudgedError, match=r"an\s+event\s+of\s+before\s+the\s+capture"):
        captured(lambda x, side: side.wait_event(event))


def test_an_event_of_another_capture_is_not_judged() -> None:
    event = CUDA.Event()
    captured(lambda x, side: (x + 1, event.record())[0])
    with CUDA.graph(CUDA.CUDAGraph()):
        event.record()
    with pytest.raises(GraphNotJudgedError), CUDA.graph(CUDA.CUDAGraph()):
        CUDA.current_stream().wait_event(event)


def test_only_streams_with_part_in_a_capture_are_capturing() -> None:
    side, graph = CUDA.Stream(), CUDA.CUDAGraph()
    with CUDA.stream(side):
        graph.capture_begin()
        told = [CUDA.current_stream() == side, side.is_capturing(), CUDA.Stream().is_capturing()]
        torch.ones(1)
        graph.capture_end()
    assert told == [True, True, False]
    assert not side.is_capturing()


def test_an_error_of_the_code_is_told_and_not_that_nothing_was_joined() -> None:
    def fails(x: Any, side: Any) -> Any:
        never_joined(x, side)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        captured(fails)


def test_a_pair_with_side_streams_is_judged() -> None:
    side, x, done = CUDA.Stream(), torch.ones(3), CUDA.Event()

    def create(desc: int, warmup: bool) -> Any:
        return lambda: waits_for_streams(x, side), {"done": done}

    report = capture_pair(
        create, 3, persistent={"x": x}, vary=[lambda: x.fill_(5)], backend="software"
    ).report
    assert "replay-differs" in report.checks
    assert not [note for note in report.notes if "_at" in note]
