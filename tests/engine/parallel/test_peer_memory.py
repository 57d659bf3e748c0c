"""Memory that ranks share: why there may be none, and how it is made. A GPU is told here."""

from __future__ import annotations

import importlib.util
import os
from unittest import mock

import pytest
import torch

from sample_engine.parallel.peer_memory import share_memory, why_not_shared

DEVICE = torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that reach each other, as far as torch is asked."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: other < 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    found = importlib.util.find_spec

    def with_triton(name: str) -> object:
        return True if name == "triton" else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", with_triton)
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")


def test_gpus_that_reach_each_other_share() -> None:
    assert why_not_shared(DEVICE, 2) is None


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_shared(DEVICE, 3) == "GPU 1 cannot reach the memory of GPU 2"
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        assert why_not_shared(DEVICE, 2) == "the GPU is older than our kernels serve"
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert why_not_shared(DEVICE, 2) == "triton is not there"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert why_not_shared(DEVICE, 2) == "the GPU is not NVIDIA's"


def test_memory_is_zeros_and_known_by_address_and_multicast_is_off() -> None:
    symmetric = pytest.importorskip("torch.distributed._symmetric_memory")
    dirty = torch.full((4,), 7, dtype=torch.uint8)
    handle = mock.Mock(buffer_ptrs=[16, 32])

    def rendezvous(tensor: torch.Tensor, group_name: str) -> mock.Mock:
        assert not tensor.any(), "others may write as soon as they know the address"
        assert group_name == "name"
        return handle

    with (
        mock.patch.object(symmetric, "empty", return_value=dirty) as empty,
        mock.patch.object(symmetric, "rendezvous", rendezvous),
    ):
        memory = share_memory(4, DEVICE, "name")
    empty.assert_called_once_with(4, dtype=torch.uint8, device=DEVICE)
    assert memory.own is dirty
    assert memory.addresses == (16, 32)
    assert memory.handle is handle
    assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
