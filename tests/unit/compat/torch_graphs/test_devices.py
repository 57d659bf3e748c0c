"""What torch says of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.compat.torch_graphs import devices  # noqa: E402

USED = {
    "cuda._is_in_bad_fork": "saying why there can be no CUDA graph",
    "cuda._device_count_nvml": "saying why there can be no CUDA graph",
}
OF_CUDA_BUILDS = {
    "_C._host_emptyCache": "leaving no memory of the host behind with each capture",
    "_C._cuda_endAllocateToPool": "putting the allocator back where a capture failed",
}


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


@pytest.mark.parametrize("name", OF_CUDA_BUILDS)
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
def test_torch_built_with_cuda_still_has_the_name(name: str) -> None:
    require("torch", torch, name, OF_CUDA_BUILDS[name])


def test_what_torch_says_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not devices.is_in_bad_fork()
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 3)
    assert devices.visible_gpus() == 3
    monkeypatch.delattr(torch.cuda, "_device_count_nvml")
    assert devices.visible_gpus() == -1


def test_the_allocator_leaves_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *args: left.append(args), raising=False
    )
    devices.leave_pool(0, (0, 1))
    assert left == [(0, (0, 1))]
