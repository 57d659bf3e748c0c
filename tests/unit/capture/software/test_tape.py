"""What is replayed, and how a step that cannot be is told."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

flex = pytest.importorskip("torch.nn.attention.flex_attention")


from pytest_cudafork.capture.interface.backend import ReplayFailedError  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.software.tape import UnlikeCaptureError  # noqa: E402


@pytest.mark.parametrize("size", [8, 130])
@pytest.mark.parametrize("trained", [False, True])
def test_lstm_replays_as_eager_code_outside_no_grad(size: int, trained: bool) -> None:
    module = torch.nn.LSTM(size, size, 2, bidirectional=True).requires_grad_(trained)
    other, x = copy.deepcopy(module), torch.randn(3, 2, size)

    def step(module: Any) -> Any:
        out, state = module(x)
        if trained:
            return out.detach(), torch.autograd.grad(out.sum(), [*module.parameters()])
        return out, state

    backend = SoftwareBackend()
    with torch.no_grad():  # whose answer is not that of the next capture
        backend.capture(lambda: module(x))
    graph = backend.capture(lambda: step(module))
    for _ in range(2):
        x.normal_()
        graph.replay()
        expected = step(other)
        assert torch.equal(graph.recording.result[0], expected[0])
        for got, want in zip(graph.recording.result[1], expected[1], strict=True):
            assert torch.allclose(got, want, atol=1e-5)


X = torch.randn(2, 4, 6, requires_grad=True)


@pytest.mark.parametrize("error", [UnlikeCaptureError("gave None"), TypeError("a"), AttributeError])
def test_what_the_tape_cannot_do_is_not_blamed_on_the_code(error: Any) -> None:
    graph = SoftwareBackend().capture(lambda: X.detach() + 1)
    assert graph._tape is not None

    def broken() -> None:
        raise error

    graph._tape._steps[0] = (broken, graph._tape._steps[0][1])
    with pytest.raises(ReplayFailedError, match="the software graph cannot replay aten::add") as it:
        graph.replay()
    assert it.value.finding.check == "capture-failed"
    assert "limit" in it.value.finding.why
    assert Path(__file__).name in it.value.finding.where
