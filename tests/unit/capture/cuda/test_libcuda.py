"""The driver's functions: structures as CUDA lays them out, refusals with numbers."""

from __future__ import annotations

import pytest

from tests.support.capture_cuda import Library
from tests.support.helpers import needs_torch

pytestmark = needs_torch


def test_our_structures_are_those_of_cuda_bindings() -> None:
    """The bindings write, and our structures read."""
    driver = pytest.importorskip("cuda.bindings.driver")
    from pytest_cudafork.capture.cuda.libcuda import CopyParams, KernelParams

    theirs = driver.CUDA_KERNEL_NODE_PARAMS()
    theirs.func = driver.CUfunction(11)
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 2, 3, 4
    theirs.blockDimX, theirs.sharedMemBytes = 5, 6
    theirs.kern = driver.CUkernel(12)
    ours = KernelParams.from_address(int(theirs.getPtr()))
    assert (ours.func, ours.kern) == (11, 12)
    assert (*ours.grid, ours.block[0], ours.shared_bytes) == (2, 3, 4, 5, 6)
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.srcHost = 0x1000
    copy.srcXInBytes = 16
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.dstDevice = driver.CUdeviceptr(0x2000)
    copy.WidthInBytes, copy.Depth = 64, 7
    ends = CopyParams.from_address(int(copy.getPtr()))
    assert (ends.source.pointer(), ends.target.pointer()) == (0x1010, 0x2000)
    assert (ends.width, ends.planes) == (64, 7)


def test_a_refusal_of_the_driver_says_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda.libcuda import DriverError, LibCuda

    monkeypatch.setattr(Library, "cuGraphNodeGetType", lambda *_: 400)
    with pytest.raises(DriverError, match="cuGraphNodeGetType answered 400"):
        LibCuda(Library()).node_type(10)


def test_a_library_that_lacks_a_function_is_refused() -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda

    with pytest.raises(OSError, match="has no cuStreamIsCapturing"):
        LibCuda(object())
