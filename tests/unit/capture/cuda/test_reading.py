"""What real graphs and the profiler say, read without a GPU: names, nodes, kernels, structures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.support.helpers import needs_torch

pytestmark = needs_torch

# A kernel's name as the compiler writes it, as the profiler shows it, and as we show it.
NAMES = {
    "template": (
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul>>",
    ),
    "lambda": (
        "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15exp_kernel_cudaERNS_18"
        "TensorIteratorBaseEENKUlvE0_clEvENKUlvE_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
        "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#1}::operator()() "
        "const::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::exp_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#1}::operator()() "
        "const::{lambda(float)#1}, std::array<char*, 2ul>)",
        None,
    ),
    "anonymous namespace": (
        "_ZN2at6native49_GLOBAL__N__7f3a0c4f_12_Normalize_cu_8f2f9e6a_12314softmax_kernelIfLi2EEEvPT_iNS_9ScalarMapE",
        None,
        None,
    ),
    "no template": ("_Z9my_kernelPfi", "my_kernel(float*, int)", "my_kernel"),
    "in a namespace": ("_ZN4mine6kernelEPKf", "mine::kernel(float const*)", "kernel"),
    "triton": ("twice_kernel", "twice_kernel", "twice_kernel"),
    "cutlass": (
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_cublas",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_cublas",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_cublas",
    ),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_kernel_has_one_name_wherever_it_was_read(kind: str) -> None:
    from pytest_cudafork.capture.cuda.names import short_name

    mangled, shown, short = NAMES[kind]
    name = short_name(mangled)
    assert not name.startswith("_Z")
    assert " " not in name.partition("<")[0]
    assert shown is None or short_name(shown) == name
    assert short is None or name == short


def test_long_names_stay_different() -> None:
    from pytest_cudafork.capture.cuda.names import short_name

    first, second = (short_name(f"kernel<{'a' * 300}, {number}>") for number in (1, 2))
    assert first != second
    assert len(first) <= 160


def test_without_a_c_library_the_identifiers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda import names

    monkeypatch.setattr(names, "_libstdcxx", lambda: None)
    assert names.demangled("_ZN2at6native3addEPf") == "at::native::add"
    assert names.demangled("_Z9my_kernelPf") == "my_kernel"
    assert names.demangled("_Zx") == "_Zx"


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


class Library:
    """Stands in for libcuda: a graph of five nodes, one of which holds a graph of two."""

    GRAPHS: ClassVar = {1: (10, 11, 12, 13, 14), 2: (20, 21)}
    TYPES: ClassVar = {10: 0, 11: 5, 12: 4, 13: 1, 14: 99, 20: 2, 21: 0}
    NAMES: ClassVar = {10: b"_ZN4mine6kernelEPKf", 21: b"twice_kernel"}

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in ("cuGraphDestroy",) and not name.startswith("cuStream"):
            raise AttributeError(name)
        return lambda *_: 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        found = self.GRAPHS[graph.value]
        count._obj.value = len(found)
        for index, node in enumerate(found if nodes is not None else ()):
            nodes[index] = node
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = self.TYPES[node.value]
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node: Any, graph: Any) -> int:
        graph._obj.value = 2
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, params: Any) -> int:
        # The runtime's kernels come as functions, others as kernels.
        setattr(params._obj, "func" if node.value == 10 else "kern", node.value)
        return 0

    def cuFuncGetName(self, name: Any, handle: Any) -> int:
        name._obj.value = self.NAMES[handle.value]
        return 0

    cuKernelGetName = cuFuncGetName

    def cuGraphMemcpyNodeGetParams(self, node: Any, params: Any) -> int:
        params._obj.source.memory_type = 1
        params._obj.source.host = 0x1000
        params._obj.target.memory_type = 2
        params._obj.target.device = 0x2000
        return 0


def test_nodes_are_listed_in_order_those_of_a_child_in_its_place() -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda
    from pytest_cudafork.capture.cuda.nodes import list_nodes, with_lines

    raw = list_nodes(LibCuda(Library()), 1)
    nodes = with_lines(raw, ["a.py:1", "a.py:2", "a.py:3", "a.py:4"])
    assert [tuple(node) for node in nodes] == [
        ("kernel", "kernel", "a.py:1"),
        ("memset", "memset", "a.py:3"),
        ("kernel", "twice_kernel", "a.py:3"),
        ("memcpy", "memcpy", "a.py:4"),
        ("other", "node of type 99", ""),
    ]
    assert (raw[3].source, raw[3].target) == (0x1000, 0x2000)


def test_a_driver_that_tells_no_names_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda
    from pytest_cudafork.capture.cuda.nodes import NO_NAME, list_nodes

    monkeypatch.delattr(Library, "cuFuncGetName")
    monkeypatch.delattr(Library, "cuKernelGetName")
    assert list_nodes(LibCuda(Library()), 1)[0].node.name == NO_NAME


def test_a_refusal_of_the_driver_says_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda.libcuda import DriverError, LibCuda

    monkeypatch.setattr(Library, "cuGraphNodeGetType", lambda *_: 400)
    with pytest.raises(DriverError, match="cuGraphNodeGetType answered 400"):
        LibCuda(Library()).node_type(10)


def test_a_library_that_lacks_a_function_is_refused() -> None:
    from pytest_cudafork.capture.cuda.libcuda import LibCuda

    with pytest.raises(OSError, match="has no cuStreamIsCapturing"):
        LibCuda(object())


def test_kernels_of_the_profiler_get_the_line_of_their_step() -> None:
    from pytest_cudafork.capture.cuda.steps import Step
    from pytest_cudafork.capture.cuda.warmup_kernels import Event, nodes_of

    steps = [
        Step("aten.add.Tensor", "a.py:1", True),
        Step("twice_kernel", "a.py:2", True),
        Step("twice_kernel", "a.py:3", True, tuning=True),
    ]
    events = [
        Event("cudafork step 0", False, 100, 200, 1),
        Event("aten::add", False, 110, 190, 2),
        Event("cudaLaunchKernel", False, 150, 160, 71),
        Event("cudafork step 1", False, 300, 400, 3),
        Event("cuLaunchKernelEx", False, 350, 360, 72),
        Event("cudafork step 2", False, 500, 600, 4),
        Event("cuLaunchKernelEx", False, 550, 560, 73),
        Event("cudaMemcpyAsync", False, 700, 710, 74),
        # What ran on the device comes later, and in an order of its own.
        Event("Memcpy DtoD (Device -> Device)", True, 4000, 4100, 74),
        Event("twice_kernel", True, 2000, 2100, 72),
        Event("void mine::add<float>(int)", True, 1000, 1100, 71, 2),
        Event("twice_kernel", True, 3000, 3100, 73),
        Event("my annotation", True, 1000, 5000, 9, annotation=True),
        Event("Stream Wait Event", True, 1200, 1200, 75),
        Event("Memset (Device)", True, 5000, 5100, 76),
    ]
    kernels = nodes_of(events, steps)
    assert [tuple(node) for node in kernels.nodes or ()] == [
        ("kernel", "add<float>", "a.py:1"),
        ("kernel", "twice_kernel", "a.py:2"),
        ("memcpy", "memcpy", ""),
        ("memset", "memset", ""),
    ]
    assert kernels.first == {0: 0, 1: 1}


def test_a_profiler_without_cupti_says_so_and_runs_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from pytest_cudafork.capture.cuda.warmup_kernels import KernelRecorder

    cpu = torch.profiler.ProfilerActivity.CPU
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {cpu})
    recorder = KernelRecorder()
    ran = []
    with recorder.running():
        ran.append(1)
    assert ran == [1]
    kernels = recorder.kernels([])
    assert kernels.nodes is None
    assert "CUPTI" in kernels.why_not


def test_a_profiler_at_work_already_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda.warmup_kernels import KernelRecorder

    activities = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: activities)

    class Busy:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("Profiler is already enabled on this thread")

    monkeypatch.setattr(torch.profiler, "profile", Busy)
    recorder = KernelRecorder()
    with recorder.running():
        pass
    assert "already enabled" in recorder.kernels([]).why_not


def test_without_cuda_it_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend
    from pytest_cudafork.capture.interface.backend import CaptureFailedError

    monkeypatch.setattr(torch.version, "cuda", None)
    backend = CudaBackend()
    assert backend.why_not() == f"torch {torch.__version__} is built without CUDA"
    for attempt in (backend.capture, backend.record):
        with pytest.raises(CaptureFailedError, match="built without CUDA"):
            attempt(lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert "forked" in (backend.why_not() or "")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert "no NVIDIA driver" in (backend.why_not() or "")


def test_an_unknown_error_mode_is_refused() -> None:
    from pytest_cudafork.capture.cuda.backend import CudaBackend

    with pytest.raises(ValueError, match="'strict'; it may be global, thread_local, relaxed"):
        CudaBackend(error_mode="strict")
