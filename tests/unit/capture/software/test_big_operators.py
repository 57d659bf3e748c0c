"""Results whose shapes a meta kernel tells wrongly or not at all: no false alarm."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402

BIG = {
    "BatchNorm": (torch.nn.BatchNorm2d(16).eval(), (2, 16, 64, 64)),
    "BatchNorm that trains": (torch.nn.BatchNorm2d(16), (2, 16, 64, 64)),
    "InstanceNorm": (torch.nn.InstanceNorm2d(16, track_running_stats=True).eval(), (2, 16, 64, 64)),
    "GroupNorm": (torch.nn.GroupNorm(4, 16), (2, 16, 64, 64)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_results_of_big_operators_are_those_of_this_cpu(name: str) -> None:
    """From 65,536 elements on a capture asks meta kernels, which speak for all devices."""
    model, shape = BIG[name]
    x = torch.randn(*shape)

    def fn(x: Any) -> Any:
        with torch.no_grad():
            return model(x)

    assert_replay_equals_eager(fn, [x], vary=[lambda: x.normal_()], backend="software")
    SoftwareBackend().capture(lambda: fn(x)).replay()  # without a warm-up to learn from


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_big_embedding_bag(mode: str) -> None:
    bag = torch.nn.EmbeddingBag(8192, 16, mode=mode).requires_grad_(False)
    x = torch.randint(0, 8192, (8, 32))
    assert_replay_equals_eager(bag, [x], vary=[lambda: x.random_(0, 8192)], backend="software")
    SoftwareBackend().capture(lambda: bag(x)).replay()


@pytest.mark.slow
def test_a_custom_operator_without_a_meta_kernel_is_learned_in_the_warmup() -> None:
    library = torch.library.Library("cudafork_learned", "FRAGMENT")
    library.define("halves(Tensor x) -> Tensor")
    library.impl("halves", lambda x: x[: len(x) // 2].clone(), "CPU")
    x = torch.randn(1 << 17)
    assert_replay_equals_eager(
        lambda x: torch.ops.cudafork_learned.halves(x) * 2,
        [x],
        vary=[lambda: x.normal_()],
        backend="software",
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_derivatives_of_derivatives() -> None:
    x = torch.randn(4)

    def fn(x: Any) -> Any:
        return torch.func.hessian(lambda v: (v**3).sum())(x)

    assert_replay_equals_eager(fn, [x], vary=[lambda: x.normal_()], backend="software")
