"""The backend of real graphs where there is no GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


def test_without_cuda_it_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend
    from pytest_cudafork.errors import CaptureFailedError

    monkeypatch.setattr(torch.version, "cuda", None)
    backend = CudaBackend()
    assert backend.why_not() == f"torch {torch.__version__} is built without CUDA"
    for attempt in (backend.capture, backend.record):
        with pytest.raises(CaptureFailedError, match="built without CUDA"):
            attempt(lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert "forked" in (backend.why_not() or "")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert "no NVIDIA driver" in (backend.why_not() or "")


def test_an_unknown_error_mode_is_refused() -> None:
    from pytest_cudafork.capture.cuda.backend import CudaBackend

    with pytest.raises(ValueError, match="'strict'; it may be global, thread_local, relaxed"):
        CudaBackend(error_mode="strict")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend on a stand-in for the driver, which is its ``driver``."""
    import torch

    from pytest_cudafork.capture.cuda import backend as module
    from pytest_cudafork.capture.cuda import libcuda, memory
    from tests.support.capture_cuda import FakeStream, pretend

    driver = pretend(monkeypatch)
    monkeypatch.setattr(module.CudaBackend, "why_not", lambda self: None)
    monkeypatch.setattr(libcuda, "load", lambda: driver)
    empty = memory.AllocatorMap([])
    monkeypatch.setattr(module, "allocator_map", lambda: empty)
    for name, value in {
        "current_device": lambda: 0,
        "Stream": lambda device: FakeStream(),
        "graph_pool_handle": lambda: (0, 1),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    made: Any = module.CudaBackend(kernels=False)
    made.driver = driver
    return made


def test_a_warm_up_runs_and_is_listed(backend: Any) -> None:
    import torch

    x = torch.ones(2)
    recording = backend.record(lambda: x.add_(1))
    assert x.tolist() == [2, 2]
    assert recording.result is x
    assert (recording.nodes, recording.why_not) == (None, "kernels of warm-ups were not asked for")
    assert [(use.reads, use.writes) for use in recording.uses] == [(True, True)]


def test_a_capture_is_replayed_and_reset(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.errors import ReplayFailedError
    from tests.support.capture_cuda import FakeGraph

    x = torch.ones(2)
    graph = backend.capture(lambda: x + 1)
    assert (backend.name, backend.device, backend.differences()) == ("cuda", "cuda", "")
    assert graph.pool == backend.new_pool()
    graph.replay()
    assert isinstance(graph.graph, FakeGraph)

    def breaks(self: Any) -> None:
        raise RuntimeError("an illegal memory access\nand more")

    monkeypatch.setattr(FakeGraph, "replay", breaks)
    with pytest.raises(ReplayFailedError, match=r"ended with: an illegal memory access$"):
        graph.replay()
    graph.reset()
    graph.reset()
    after: Any = graph.graph, graph.recording.result
    assert after == (None, None)
    with pytest.raises(ReplayFailedError, match="has been reset"):
        graph.replay()


def test_a_capture_that_fails_names_the_line(backend: Any) -> None:
    from pytest_cudafork.errors import CaptureFailedError

    def fn() -> None:
        backend.driver.spoil()
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(CaptureFailedError, match="waits for the GPU") as caught:
        backend.capture(fn)
    assert caught.value.finding.where.startswith(__file__)
    assert isinstance(caught.value.__cause__, RuntimeError)
    backend.synchronize()


def test_a_capture_within_another_is_refused(backend: Any) -> None:
    from pytest_cudafork.capture.cuda.libcuda import CaptureStatus
    from pytest_cudafork.errors import CaptureFailedError

    backend.driver.state = CaptureStatus.ACTIVE
    with pytest.raises(CaptureFailedError, match="a capture is under way"):
        backend.capture(lambda: None)
    backend.driver.state = CaptureStatus.NONE


@pytest.mark.parametrize(
    ("library", "gpus", "words"),
    [
        ({"cudafork_state": 1}, 1, "this plugin's phantom"),
        ({}, 1, "it needs CUDA 12.0 or later"),
        (None, 0, "no GPU is visible to this process"),
        (None, 1, None),
    ],
)
def test_why_there_is_no_graph_on_this_driver(
    library: Any, gpus: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    import torch

    from pytest_cudafork.capture.cuda import backend as module
    from pytest_cudafork.capture.cuda import libcuda

    whole = dict.fromkeys(libcuda._FUNCTIONS, 1)
    loaded = SimpleNamespace(**(whole if library is None else library))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **options: loaded)
    monkeypatch.setattr(module, "ask_driver", lambda: SimpleNamespace(driver=None))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(module, "is_in_bad_fork", lambda: False)
    monkeypatch.setattr(module, "visible_gpus", lambda: gpus)
    reason = module.CudaBackend().why_not()
    assert reason is None if words is None else words in (reason or "")
