"""What the software graph cannot do it says in words that name the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import GraphCaptureError, GraphUsageError  # noqa: E402


def _failure(fn: Callable[[Any], Any], kind: type[Exception] = GraphCaptureError) -> str:
    with pytest.raises(kind) as failure:
        assert_replay_equals_eager(fn, [torch.randn(4)], backend="software")
    return " ".join(str(failure.value).split())


def _step(warm: bool = True, **options: Any) -> Callable[[Any], Any]:
    weight = torch.nn.Parameter(torch.randn(4))
    optimizer = torch.optim.Adam([weight], **options)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = ((weight - x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if warm:
        step(torch.zeros(4))
    return step


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_adam_is_refused_as_torch_refuses_it_on_a_gpu(options: Any) -> None:
    text = _failure(_step(**options))
    assert "[capture-failed] the step of Adam" in text
    assert "capturable=False" in text
    assert "make it with capturable=True; and with fused=True" in text
    assert "optimizer.step()" in text


def test_adam_capturable_is_told_that_it_needs_a_gpu_and_of_fused() -> None:
    text = _failure(_step(warm=False, capturable=True), GraphUsageError)
    assert "on a GPU only" in text
    assert "fused=True" in text
    assert Path(__file__).name in text


def test_what_adam_is_told_to_do_helps() -> None:
    step = _step(fused=True, capturable=True)
    assert_replay_equals_eager(step, [torch.randn(4)], backend="software")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_is_told_of_preserve_rng_state(reentrant: bool) -> None:
    weight = torch.randn(4, requires_grad=True)

    def fn(x: Any, **options: Any) -> Any:
        made = checkpoint(lambda w: (x * w).sin(), weight, use_reentrant=reentrant, **options)
        made.sum().backward()
        return made.detach()

    assert "preserve_rng_state=False" in _failure(fn)
    graph = SoftwareBackend().capture(lambda: fn(torch.ones(4), preserve_rng_state=False))
    graph.replay()


def test_seeding_of_ones_own_is_not_told_of_checkpoints() -> None:
    text = _failure(lambda x: (torch.manual_seed(1), x)[1])
    assert "what to do: seed before the replay" in text


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


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may know CUDA")
def test_code_for_a_gpu_only_is_told_of_the_device() -> None:
    text = _failure(lambda x: x.cuda(), GraphUsageError)
    assert "Torch not compiled with CUDA enabled" in text
    assert "graph_backend" in text
    assert Path(__file__).name in text


def test_a_python_counter_is_not_taken_for_unfilled_memory() -> None:
    calls = [0]

    def fn(x: Any) -> Any:
        calls[0] += 1
        return x + (1 if calls[0] > 3 else 0)

    text = _failure(fn)
    assert "replay-differs" in text
    assert "torch.empty" not in text


def test_a_python_counter_beside_memory_of_torch_empty_is_not_either() -> None:
    calls = [0]

    def fn(x: Any) -> Any:
        calls[0] += 1
        made = torch.empty(4)
        return made.copy_(x + (1 if calls[0] > 3 else 0))

    text = _failure(fn)
    assert "replay-differs" in text
    assert "uninitialized" not in text


def test_unfilled_memory_is_still_found() -> None:
    def fn(x: Any) -> Any:
        made = torch.empty(4)
        made[:2] = x[:2]
        return made

    assert "uninitialized-read" in _failure(fn)
