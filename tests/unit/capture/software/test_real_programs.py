"""Programs that nobody here wrote, on the software graph: no false alarm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def test_a_transformer_encoder() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 32)

    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return encoder(x)

    report = assert_replay_equals_eager(
        fn, [x], vary=[lambda: x.normal_(), lambda: x[1].zero_()], backend="software"
    )
    assert report.nodes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"fused": True, "capturable": True}),
        ("AdamW", {"fused": True, "capturable": True}),
    ],
)
def test_a_step_of_an_optimizer(name: str, options: dict[str, Any]) -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    data = torch.randn(4, 8)

    def step(data: torch.Tensor) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(data)  # the optimizer makes its state in the first step
    report = assert_replay_equals_eager(
        step, [data], vary=[lambda: data.normal_()], backend="software"
    )
    assert report.nodes


def test_an_lstm_and_a_convolution() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    lstm = torch.nn.LSTM(8, 16, batch_first=True).eval()
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    ).eval()
    x, image = torch.randn(2, 5, 8), torch.randn(2, 3, 8, 8)

    def fn(x: torch.Tensor, image: torch.Tensor) -> Any:
        with torch.no_grad():
            return lstm(x)[0], net(image)

    assert_replay_equals_eager(fn, [x, image], vary=[lambda: image.normal_()], backend="software")
