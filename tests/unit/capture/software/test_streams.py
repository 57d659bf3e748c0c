"""Streams, events and waiting: refused in a capture, nothing in a recorded run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import GraphCaptureError, GraphNotJudgedError  # noqa: E402


def _failure(fn: Callable[[Any], Any], kind: type[Exception] = GraphCaptureError) -> str:
    with pytest.raises(kind) as failure:
        assert_replay_equals_eager(fn, [torch.randn(4)], backend="software")
    return " ".join(str(failure.value).split())


STREAMS: dict[str, Callable[[], Any]] = {
    "Event": lambda: torch.cuda.Event(enable_timing=True).record(),
    "Stream": lambda: torch.cuda.Stream().synchronize(),
    "current_stream": lambda: torch.cuda.current_stream().wait_stream(torch.cuda.Stream()),
    "stream": lambda: torch.cuda.stream(torch.cuda.Stream()).__enter__(),
}


def test_synchronize_is_refused_as_cuda_refuses_it() -> None:
    before = torch.cuda.synchronize
    text = _failure(lambda x: (torch.cuda.synchronize(), x)[1])
    assert "[host-sync] torch.cuda.synchronize() at " in text
    assert Path(__file__).name in text
    assert "CUDA refuses this with 'operation not permitted when stream is capturing'" in text
    assert torch.cuda.synchronize is before


@pytest.mark.parametrize("name", STREAMS)
def test_streams_and_events_are_refused(name: str) -> None:
    before = vars(torch.cuda)[name]
    text = _failure(lambda x: (STREAMS[name](), x)[1], GraphNotJudgedError)
    assert f"[not-judged] torch.cuda.{name}" in text or "torch.cuda.Stream at" in text
    assert "no streams and events" in text
    assert "backend 'cuda'" in text
    assert vars(torch.cuda)[name] is before


def test_objects_can_be_asked_whether_they_are_streams() -> None:
    def fn(x: Any) -> Any:
        return x + float(isinstance(x, (torch.cuda.Stream, torch.cuda.Event)))

    assert_replay_equals_eager(fn, [torch.randn(4)], backend="software")


def test_in_a_recorded_run_they_do_nothing() -> None:
    x = torch.ones(2)

    def fn() -> Any:
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(stream):
            event.record(stream)
            assert event.query(), "the work is done"
            torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        assert not hasattr(stream, "__array__")
        return x * 2

    recording = SoftwareBackend().record(fn)
    assert [node.name for node in recording.nodes or ()] == ["aten::mul"]


def test_a_capture_says_that_it_is_one() -> None:
    seen = []
    before = torch.cuda.is_current_stream_capturing
    x = torch.ones(2)

    def fn() -> Any:
        seen.append(torch.cuda.is_current_stream_capturing())
        return x * 2

    SoftwareBackend().capture(fn)
    assert seen == [True]
    assert torch.cuda.is_current_stream_capturing is before


def test_other_threads_get_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("torch"))

    def fn() -> Any:
        thread = threading.Thread(target=torch.cuda.synchronize)
        thread.start()
        thread.join()
        return torch.ones(1)

    SoftwareBackend().record(fn)
    assert calls == ["torch"]


def test_the_current_stream_may_be_asked_for() -> None:
    seen = []

    def fn(x: Any) -> Any:
        stream = torch.cuda.current_stream()
        seen.append(stream.is_capturing())
        with torch.cuda.stream(stream), torch.cuda.stream(None):
            return x * 2 + stream.cuda_stream * 0

    x = torch.randn(4)
    assert_replay_equals_eager(fn, [x], vary=[lambda: x.normal_()], backend="software")
    assert seen[:2] == [False, True]
    assert not any(seen[2:])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("synchronize", GraphCaptureError),
        ("query", GraphCaptureError),
        ("wait_stream", GraphNotJudgedError),
        ("record_event", GraphNotJudgedError),
    ],
)
def test_ordering_work_by_the_current_stream_is_refused(name: str, kind: type[Exception]) -> None:
    text = _failure(lambda x: (getattr(torch.cuda.current_stream(), name)(), x)[1], kind)
    assert f"{name} of the current stream" in text
