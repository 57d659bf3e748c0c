"""Errors of code that needs a GPU are explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.software.differences import (  # noqa: E402
    DIFFERENCES,
    explaining_gpu_code,
)
from pytest_cudafork.errors import GraphCaptureError, GraphNotJudgedError  # noqa: E402


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


def test_adam_capturable_is_told_that_it_needs_a_gpu_and_of_fused() -> None:
    text = _failure(_step(warm=False, capturable=True), GraphNotJudgedError)
    assert "on a GPU only" in text
    assert "fused=True" in text
    assert Path(__file__).name in text


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may know CUDA")
def test_code_for_a_gpu_only_is_told_of_the_device() -> None:
    text = _failure(lambda x: x.cuda(), GraphNotJudgedError)
    assert "Torch not compiled with CUDA enabled" in text
    assert "graph_backend" in text
    assert Path(__file__).name in text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Torch not compiled with CUDA enabled", "take the device from the graph_backend fixture"),
        ("no CUDA-capable device is detected", "take the device from the graph_backend fixture"),
        ("If capturable=True, params must be on a GPU", "fused=True as well"),
    ],
)
def test_an_error_is_explained_with_its_line(said: str, words: str) -> None:
    def check() -> None:
        with explaining_gpu_code():
            raise AssertionError(said)

    with pytest.raises(GraphNotJudgedError, match=words) as caught:
        check()
    first = str(caught.value).splitlines()[0]
    assert first.startswith("AssertionError at ")
    assert Path(__file__).name in first
    assert said in first


def test_other_errors_pass() -> None:
    def check() -> None:
        with explaining_gpu_code():
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        check()


def test_the_differences_are_a_list_of_subjects() -> None:
    subjects = [line[2:].partition(":")[0] for line in DIFFERENCES.splitlines() if line[:2] == "- "]
    assert {"Streams and events", "Memory", "Random numbers", "Threads"} <= set(subjects)
