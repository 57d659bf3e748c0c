"""Programs that nobody here wrote, as real CUDA graphs: no false alarm."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.sessions import needs_torch
from tests.support.torch_compile import compiling_here

pytestmark = [
    pytest.mark.gpu,
    needs_torch,
    pytest.mark.filterwarnings("ignore"),  # advice of the libraries, which is no matter of ours
]


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed"
    )


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    with compiling_here():
        yield
    torch._dynamo.reset()


def encoder() -> Any:
    import torch

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().eval()


def test_a_transformer_encoder() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    model, x = encoder(), torch.randn(4, 16, 64, device="cuda")

    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    report = assert_replay_equals_eager(
        fn, [x], vary=[lambda: x.normal_(), lambda: x[1].zero_()], backend="cuda"
    )
    assert report.nodes


def test_make_graphed_callables_on_a_transformer_encoder() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    model, x = encoder(), torch.randn(4, 16, 64, device="cuda")
    eager = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (x,))

    def fn(x: torch.Tensor) -> Any:
        return eager(x).detach()

    report = assert_replay_equals_eager(
        fn,
        [x],
        replay=lambda: graphed(x).detach(),
        vary=[lambda: x.normal_(), lambda: x[1].zero_()],
        backend="cuda",
    )
    assert report.replays > 0


@needs("torchvision")
def test_make_graphed_callables_on_a_resnet() -> None:
    import torch
    from torchvision.models import resnet18  # type: ignore[import-not-found, unused-ignore]

    from pytest_cudafork import assert_replay_equals_eager

    model, x = resnet18().cuda().eval(), torch.randn(2, 3, 64, 64, device="cuda")
    eager = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (x,))

    assert_replay_equals_eager(
        lambda x: eager(x).detach(),
        [x],
        replay=lambda: graphed(x).detach(),
        vary=[lambda: x.normal_()],
        rtol=1e-4,
        atol=1e-4,  # cuDNN may choose another algorithm
        backend="cuda",
    )


@needs("torchvision")
def test_a_resnet() -> None:
    import torch
    from torchvision.models import resnet18

    from pytest_cudafork import assert_replay_equals_eager

    model, x = resnet18().cuda().eval(), torch.randn(2, 3, 64, 64, device="cuda")

    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(x)

    assert_replay_equals_eager(
        fn, [x], vary=[lambda: x.normal_()], rtol=1e-4, atol=1e-4, backend="cuda"
    )


def mlp(x: Any, weight: Any) -> Any:
    import torch

    return torch.softmax(torch.nn.functional.gelu(x @ weight) * 2 + 1, -1)


def test_code_that_was_compiled_with_reduced_overhead() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    x, weight = torch.randn(8, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    compiled = torch.compile(mlp, mode="reduce-overhead")

    def replay() -> Any:
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            return compiled(x, weight)

    for _ in range(3):  # warm-up, capture, replay
        replay()
    assert_replay_equals_eager(
        mlp,
        [x, weight],
        replay=replay,
        vary=[lambda: x.normal_()],
        rtol=1e-4,
        atol=1e-4,
        backend="cuda",
    )


def test_compiled_code_captured_here() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    x, weight = torch.randn(8, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    compiled = torch.compile(mlp)
    report = assert_replay_equals_eager(
        compiled, [x, weight], vary=[lambda: x.normal_()], backend="cuda"
    )
    assert report.nodes


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_training_step_with_an_optimizer(name: str) -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)
    ).cuda()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, capturable=True)
    data = torch.randn(8, 16, device="cuda")

    def step(data: torch.Tensor) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the optimizer makes its state in the first step
        step(data)
    torch.cuda.current_stream().wait_stream(side)
    report = assert_replay_equals_eager(
        step, [data], vary=[lambda: data.normal_()], rtol=1e-4, atol=1e-5, backend="cuda"
    )
    assert report.nodes
