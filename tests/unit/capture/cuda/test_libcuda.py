"""The driver's functions: structures as CUDA lays them out, refusals with numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.support.capture_cuda import Library
from tests.support.sessions import needs_torch

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


class Streams:
    """Stands in for libcuda: one stream, in a state of a capture, and the graph it makes."""

    def __init__(self, status: int = 1, code: int = 0) -> None:
        from pytest_cudafork.capture.cuda import libcuda

        self.state, self.code, self.destroyed = status, code, 0
        for name in libcuda._FUNCTIONS:
            self.__dict__.setdefault(name, getattr(type(self), name, lambda *_: 0))

    def answer(self, stream: Any, status: Any) -> int:
        status._obj.value = self.state
        return self.code


def driver(**functions: Any) -> Any:
    """The driver with some functions of its library given."""
    from pytest_cudafork.capture.cuda.libcuda import LibCuda

    library = Streams()
    library.__dict__.update(functions)
    return LibCuda(library)


def test_a_stream_is_asked_whether_it_is_captured() -> None:
    from pytest_cudafork.capture.cuda.libcuda import CaptureStatus

    for state, code, status in (
        (1, 0, CaptureStatus.ACTIVE),
        (2, 0, CaptureStatus.INVALIDATED),
        (1, 906, CaptureStatus.NONE),
    ):
        library = Streams(state, code)
        assert driver(cuStreamIsCapturing=library.answer).status(7) is status


@pytest.mark.parametrize(("code", "status", "graph"), [(0, 1, 99), (0, 2, 0), (1, 1, 0)])
def test_the_graph_into_which_a_stream_is_captured(code: int, status: int, graph: int) -> None:
    def info(stream: Any, state: Any, identity: Any, found: Any, *rest: Any) -> int:
        state._obj.value, found._obj.value = status, 99
        return code

    assert driver(cuStreamGetCaptureInfo_v2=info).graph_in_progress(7) == graph


def test_a_capture_is_begun_and_its_graph_dropped_at_the_end() -> None:
    begun, dropped = [], []

    def begin(stream: Any, mode: Any) -> int:
        begun.append((stream.value, mode.value))
        return 0

    def end(stream: Any, graph: Any) -> int:
        graph._obj.value = 5
        return 901

    def destroy(graph: Any) -> int:
        dropped.append(graph.value)
        return 0

    cuda = driver(cuStreamBeginCapture_v2=begin, cuStreamEndCapture=end, cuGraphDestroy=destroy)
    cuda.begin(7)
    cuda.end(7)
    assert (begun, dropped) == ([(7, 2)], [5])


def test_nodes_their_types_and_names() -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda

    cuda = LibCuda(Library())
    assert (cuda.count(1), cuda.nodes(2), cuda.node_type(12), cuda.child(12)) == (5, [20, 21], 4, 2)
    assert cuda.kernel_name(21) == "twice_kernel"


def test_both_sides_of_a_copy() -> None:
    def ends(node: Any, params: Any) -> int:
        source, target = params._obj.source, params._obj.target
        source.memory_type, source.host, source.x = 1, 1000, 24
        target.memory_type, target.device = 2, 2000
        return 0

    assert driver(cuGraphMemcpyNodeGetParams=ends).copy_ends(1) == (1024, 2000)


def test_an_address_is_the_drivers_or_not() -> None:
    assert driver().knows(1), "an older driver cannot be asked"
    assert driver(cuPointerGetAttribute=lambda *_: 0).knows(1)
    assert not driver(cuPointerGetAttribute=lambda *_: 1).knows(1)


def test_where_there_is_no_driver_none_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda import libcuda

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Streams())
    assert isinstance(libcuda.load(), libcuda.LibCuda)
