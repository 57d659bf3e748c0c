"""Errors of code that needs a GPU are explained."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork.capture.software.differences import (  # noqa: E402
    DIFFERENCES,
    explaining_gpu_code,
)
from pytest_cudafork.errors import GraphNotJudgedError  # noqa: E402
from pytest_cudafork.settings.devices import AS_IF_A_GPU, AS_IF_A_GPU_MEANS  # noqa: E402
from tests.support import capture_words  # noqa: E402
from tests.support.capture_words import step_with_adam, words_of_failure  # noqa: E402


def test_adam_capturable_is_told_that_it_needs_a_gpu_and_of_fused() -> None:
    text = words_of_failure(step_with_adam(warm=False, capturable=True), GraphNotJudgedError)
    assert "on a GPU only" in text
    assert "fused=True" in text
    assert Path(capture_words.__file__).name in text


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may know CUDA")
def test_code_for_a_gpu_only_is_told_of_the_device() -> None:
    text = words_of_failure(lambda x: x.cuda(), GraphNotJudgedError)
    assert "Torch not compiled with CUDA enabled" in text
    assert "graph_backend" in text
    assert Path(__file__).name in text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Torch not compiled with CUDA enabled", "take the device from the graph_backend fixture"),
        ("no CUDA-capable device is detected", "take the device from the graph_backend fixture"),
        ("torch.cuda.Stream requires CUDA support", f"pytest {AS_IF_A_GPU} {AS_IF_A_GPU_MEANS}"),
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


def test_nothing_is_to_be_left_out_that_has_a_stand_in() -> None:
    with pytest.raises(GraphNotJudgedError) as caught, explaining_gpu_code():
        raise RuntimeError("Found no NVIDIA driver on your system")
    assert "leave out" not in str(caught.value)


def test_other_errors_pass() -> None:
    def check() -> None:
        with explaining_gpu_code():
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        check()


def test_the_differences_are_a_list_of_subjects() -> None:
    subjects = [line[2:].partition(":")[0] for line in DIFFERENCES.splitlines() if line[:2] == "- "]
    assert {"Streams and events", "Memory", "Random numbers", "Threads"} <= set(subjects)
