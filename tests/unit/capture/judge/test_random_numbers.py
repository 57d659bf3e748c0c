"""The state of random generators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge.random_numbers import restored, state_of  # noqa: E402


def test_drawing_changes_it_and_it_is_put_back() -> None:
    before = state_of("software")
    with restored(torch.device("cpu")):
        torch.rand(1)
        assert state_of("software") != before
    assert state_of("software") == before


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_offset_of_the_default_generator() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    before = state_of("cuda")
    with restored(torch.device("cuda")):
        torch.rand(1, device="cuda")
        assert state_of("cuda") != before
    assert state_of("cuda") == before
