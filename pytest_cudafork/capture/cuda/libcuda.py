"""The few functions of the CUDA driver that torch does not offer: captures and graphs.

They are plain C functions whose signatures do not change, so ctypes does, with any CUDA 12 or 13
and nothing to install.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, NamedTuple

from pytest_cudafork.settings.real_driver import LIBCUDA

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_HOST = 1  # CU_MEMORYTYPE_HOST
_FUNCTIONS = (
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamGetCaptureInfo_v2",
    "cuGraphDestroy",
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphChildGraphNodeGetGraph",
)


class CaptureStatus(enum.IntEnum):
    """What the driver says of a stream; the numbers are its own."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


class KernelParams(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _CopyEnd(ctypes.Structure):
    """One side of ``CUDA_MEMCPY3D_v2``."""

    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("z", ctypes.c_size_t),
        ("lod", ctypes.c_size_t),
        ("memory_type", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )

    def pointer(self) -> int:
        """Where this side begins; 0 for an array."""
        base = self.host if self.memory_type == _HOST else self.device
        return int(base or 0) + int(self.x)


class CopyParams(ctypes.Structure):
    """``CUDA_MEMCPY3D_v2``."""

    _fields_ = (
        ("source", _CopyEnd),
        ("target", _CopyEnd),
        ("width", ctypes.c_size_t),
        ("rows", ctypes.c_size_t),
        ("planes", ctypes.c_size_t),
    )


class DriverError(RuntimeError):
    """The driver refused; it says with which number."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} answered {code}")
        self.code = code


class Ends(NamedTuple):
    """The two addresses of a copy."""

    source: int
    target: int


class LibCuda:
    """The driver of this process. Handles are integers, as torch gives them."""

    def __init__(self, library: Any) -> None:
        missing = [name for name in _FUNCTIONS if getattr(library, name, None) is None]
        if missing:
            raise OSError(f"the {LIBCUDA} of this process has no {missing[0]}")
        self._library = library

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code != 0:
            raise DriverError(function, code)

    def status(self, stream: int) -> CaptureStatus:
        """Whether a stream is being captured. Asking never harms a capture."""
        status = ctypes.c_int()
        # The legacy default stream answers with an error while a blocking stream is captured; it
        # is not being captured itself, nothing ever captures it.
        code = self._library.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
        return CaptureStatus(status.value) if code == 0 else CaptureStatus.NONE

    def graph_in_progress(self, stream: int) -> int:
        """The graph into which a stream is being captured; 0 if there is none."""
        status, identity = ctypes.c_int(), ctypes.c_uint64()
        graph, dependencies, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        code = self._library.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream),
            *map(ctypes.byref, (status, identity, graph, dependencies, count)),
        )
        return int(graph.value or 0) if code == 0 and status.value == CaptureStatus.ACTIVE else 0

    def begin(self, stream: int) -> None:
        """Start to capture a stream, in the mode that forbids nothing."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_RELAXED))

    def end(self, stream: int) -> None:
        """Stop capturing a stream, whatever state the capture is in, and drop the graph."""
        graph = ctypes.c_void_p()
        self._library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        if graph.value:
            self._call("cuGraphDestroy", graph)

    def count(self, graph: int) -> int:
        """How many nodes a graph has; those of a graph within it are not counted."""
        count = ctypes.c_size_t()
        self._call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        return count.value

    def nodes(self, graph: int) -> list[int]:
        """Handles of a graph's nodes, in the order in which they were made."""
        count = ctypes.c_size_t(self.count(graph))
        nodes = (ctypes.c_void_p * count.value)()
        if count.value:
            self._call("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
        return [int(node or 0) for node in nodes]

    def node_type(self, node: int) -> int:
        """The number of ``CUgraphNodeType``."""
        kind = ctypes.c_int()
        self._call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        return kind.value

    def child(self, node: int) -> int:
        """The graph that a child node holds."""
        graph = ctypes.c_void_p()
        self._call("cuGraphChildGraphNodeGetGraph", ctypes.c_void_p(node), ctypes.byref(graph))
        return int(graph.value or 0)

    def kernel_name(self, node: int) -> str:
        """The name of a kernel node's kernel as the compiler wrote it; "" if it cannot be told."""
        params = KernelParams()
        self._call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(params))
        for function, handle in (("cuFuncGetName", params.func), ("cuKernelGetName", params.kern)):
            ask = getattr(self._library, function, None)  # drivers before 12.3 have neither
            name = ctypes.c_char_p()
            if ask is None or not handle:
                continue
            if ask(ctypes.byref(name), ctypes.c_void_p(handle)) == 0 and name.value:
                return name.value.decode(errors="replace")
        return ""

    def copy_ends(self, node: int) -> Ends:
        """Where a copy node reads and writes."""
        params = CopyParams()
        self._call("cuGraphMemcpyNodeGetParams", ctypes.c_void_p(node), ctypes.byref(params))
        return Ends(params.source.pointer(), params.target.pointer())

    def knows(self, pointer: int) -> bool:
        """Whether an address belongs to the driver: device memory, or pinned host memory."""
        kind = ctypes.c_uint()
        ask = getattr(self._library, "cuPointerGetAttribute", None)
        if ask is None:
            return True
        code = ask(ctypes.byref(kind), ctypes.c_int(_MEMORY_TYPE), ctypes.c_uint64(pointer))
        return bool(code == 0)


def load() -> LibCuda:
    """Load the driver, which initializes nothing. Raises ``OSError`` where there is none."""
    return LibCuda(ctypes.CDLL(LIBCUDA))
