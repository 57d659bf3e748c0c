"""Streams, events and waiting: refused in a capture, nothing in a recorded run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.errors import GraphCaptureError  # noqa: E402


def _failure(fn: Callable[[Any], Any], kind: type[Exception] = GraphCaptureError) -> str:
    with pytest.raises(kind) as failure:
        assert_replay_equals_eager(fn, [torch.randn(4)], backend="software")
    return " ".join(str(failure.value).split())


STREAMS: dict[str, Callable[[], Any]] = {
    "Event": lambda: torch.cuda.Event(enable_timing=True).record(),
    "Stream": lambda: torch.cuda.Stream().synchronize(),
    "current_stream": lambda: torch.cuda.current_stream().wait_stream(torch.cuda.Stream()),
    "stream": lambda: torch.cuda.stream(None).__enter__(),
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
    text = _failure(lambda x: (STREAMS[name](), x)[1])
    assert f"[capture-failed] torch.cuda.{name}" in text or "torch.cuda.Stream at" in text
    assert "no streams and events" in text
    assert "backend 'cuda'" in text
    assert vars(torch.cuda)[name] is before


def test_objects_can_be_asked_whether_they_are_streams() -> None:
    def fn(x: Any) -> Any:
        return x + float(isinstance(x, (torch.cuda.Stream, torch.cuda.Event)))

    assert_replay_equals_eager(fn, [torch.randn(4)], backend="software")
