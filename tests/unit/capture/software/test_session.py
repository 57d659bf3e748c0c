"""All that is in force during a capture is undone after it."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import thread as executors
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402

REPLACED = [
    (torch, "tensor"), (torch, "compile"), (torch, "manual_seed"), (torch.Tensor, "tolist"),
    (torch.Tensor, "__setitem__"), (torch.Tensor, "__deepcopy__"), (torch.cuda, "Stream"),
    (torch.nn.functional, "one_hot"), (threading.Thread, "_bootstrap_inner"),
    (executors._WorkItem, "run"),
]  # fmt: skip


def state() -> list[Any]:
    return [gc.isenabled(), *(vars(owner).get(name) for owner, name in REPLACED)]


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_everything_is_as_before(ends: str) -> None:
    before, x, within = state(), torch.ones(2), []

    def fn() -> Any:
        within.append(state())
        if ends != "well":
            raise KeyError
        return x * 2

    try:
        SoftwareBackend().capture(fn)
    except KeyError:
        assert ends != "well"
    assert state() == before
    assert within[0][0] is False, "no garbage is collected in a capture"
    assert all(a is not b for a, b in zip(within[0][1:], before[1:], strict=True))
    SoftwareBackend().record(lambda: x * 2)
    assert state() == before


def test_a_capture_within_a_capture_is_refused() -> None:
    def fn() -> None:
        SoftwareBackend().capture(lambda: torch.ones(1))

    with pytest.raises(CaptureFailedError, match="a capture was begun within a capture") as caught:
        SoftwareBackend().capture(fn)
    finding = caught.value.finding
    assert finding.where == f"{__file__}:{fn.__code__.co_firstlineno + 1}"
    assert "--cuda-fork-captures checks the graphs of a test that calls it" in finding.todo


def test_a_seed_behind_torchs_back_is_noticed_and_undone() -> None:
    before = torch.default_generator.get_state()

    def fn() -> Any:
        torch.default_generator.set_state(torch.Generator().get_state())
        return torch.ones(1)

    with pytest.raises(CaptureFailedError, match="random generator changed"):
        SoftwareBackend().capture(fn)
    assert torch.equal(before, torch.default_generator.get_state())
