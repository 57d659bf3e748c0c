"""Streams and events of the software graph: work runs at once, and captures refuse to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import streams  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError  # noqa: E402


def test_streams_have_numbers_and_the_current_one_is_that_of_the_innermost_with() -> None:
    first, second = streams.Stream("cuda", priority=-1), streams.Stream()
    assert first != second
    assert len({first, second, streams.default_stream(), streams.default_stream()}) == 3
    assert streams.current_stream() == streams.default_stream()
    assert streams.default_stream().cuda_stream == 0
    with streams.stream(first):
        assert streams.current_stream() is first
        with streams.stream(second), streams.stream(None):
            assert streams.current_stream() is second
        assert streams.current_stream() is first
    assert streams.current_stream().stream_id == 0
    with streams.stream(first):
        streams.set_stream(second)
        assert streams.current_stream() is second
    assert streams.current_stream() == streams.default_stream()
    assert streams.ExternalStream(77).cuda_stream == 77
    assert "software graph" in repr(first)
    with first as entered:
        assert entered is streams.current_stream() is first
    assert streams.current_stream() == streams.default_stream()


def test_what_was_issued_is_done() -> None:
    stream = streams.Stream()
    stream.wait_stream(streams.current_stream())
    event = stream.record_event()
    stream.wait_event(event)
    event.wait(stream)
    event.synchronize()
    stream.synchronize()
    streams.synchronize()
    assert event.query()
    assert stream.query()
    assert not stream.is_capturing()


def test_events_that_take_the_time_tell_it() -> None:
    first, last = streams.Event(enable_timing=True), streams.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(last)
    first.record()
    last.record(streams.current_stream())
    assert first.elapsed_time(last) >= 0
    with pytest.raises(ValueError, match="enable_timing=True"):
        first.elapsed_time(streams.Event())


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "Stream.synchronize": lambda stream, event: stream.synchronize(),
    "Stream.query": lambda stream, event: stream.query(),
    "Event.synchronize": lambda stream, event: event.synchronize(),
    "Event.query": lambda stream, event: event.query(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_capture_refuses_to_wait(name: str) -> None:
    stream, event = streams.Stream(), streams.Event()
    with pytest.raises(CaptureFailedError, match=name) as failure:
        SoftwareBackend().capture(lambda: CALLS[name](stream, event))
    assert failure.value.finding.check == "host-sync"


@pytest.mark.parametrize(
    ("asked", "index"),
    [(None, 0), ("cuda", 0), ("cuda:1", 1), (1, 1), (torch.device("cuda", 2), 2)],
)
def test_a_stream_says_on_which_gpu_it_is(asked: Any, index: int) -> None:
    for one in (streams.Stream(asked), streams.default_stream(asked)):
        assert (one.device, one.device_index) == (torch.device("cuda", index), index)


AnyStream: Any = streams.AnyStream
AnyEvent: Any = streams.AnyEvent


def test_streams_and_events_of_any_device_are_stand_ins_or_torch_s_own() -> None:
    for made in (
        AnyStream(device="cuda"),
        AnyStream("cuda:0"),
        AnyStream(torch.device("cuda", 0), priority=-1),
        AnyStream(0),
        AnyStream(),
    ):
        assert type(made) is streams.Stream
        assert isinstance(made, AnyStream)
        assert made.device == torch.device("cuda", 0)
        assert made.query()
        made.wait_stream(streams.current_stream())
        with made:
            assert streams.current_stream() is made
    timed = [AnyEvent(device="cuda:1", enable_timing=True) for _ in range(2)]
    assert timed[0].device.index == 1
    assert isinstance(timed[0], AnyEvent)
    for each in timed:
        each.record(AnyStream("cuda"))
    assert timed[0].elapsed_time(timed[1]) >= 0
    host = AnyStream(device="cpu")
    assert type(host) is AnyStream.original
    assert isinstance(host, AnyStream)
    assert not isinstance(object(), AnyStream)


def test_a_stream_is_known_again_by_its_numbers() -> None:
    stream = streams.Stream()
    again = AnyStream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert again == stream
    assert again.native_handle == stream.cuda_stream
    assert streams.Stream.priority_range() == (0, -5)


def test_what_only_a_driver_has_of_an_event_is_refused_by_name() -> None:
    with pytest.raises(GraphNotJudgedError, match=r"Event.ipc_handle\(\)"):
        streams.Event(interprocess=True).ipc_handle()
    with pytest.raises(GraphNotJudgedError, match=r"Event.from_ipc_handle\(\)"):
        streams.Event.from_ipc_handle(0, b"")


def test_a_stream_of_any_device_is_forked_from_a_capture_and_joined_to_it() -> None:
    x = torch.ones(2)
    side = AnyStream("cuda")
    event = AnyEvent("cuda")
    capture = SoftwareBackend().begin(None)
    with capture:
        y = x * 2
        event.record()
        side.wait_event(event)
        with side:
            z = y + 1
        streams.current_stream().wait_stream(side)
        total = y + z
    capture.finished().replay()
    assert total.tolist() == [5, 5]
