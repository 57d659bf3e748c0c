"""NVML, which tells of GPUs and their memory without initializing CUDA.

Where ``nvidia-ml-py`` (the module ``pynvml``) is not installed, or is one that knows less,
``CtypesNvml`` stands in for the few functions that are used, by the same names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_cudafork.gpus.inventory import Gpu

LIBRARY = "libnvidia-ml.so.1"
_INSUFFICIENT_SIZE = 7
_UNKNOWN_BYTES = 2**64 - 1  # what the driver says where it does not account for processes
_TEXT_BYTES = 96


class NvmlError(RuntimeError):
    """NVML did not answer. Recoverable: what it would have told is then not known."""


class DeviceMemory(NamedTuple):
    """Bytes in use on one device, and by process; None where the driver does not tell.

    What the driver keeps for itself is not in use.
    """

    used: int
    processes: dict[int, int | None]


@contextlib.contextmanager
def open_nvml(binding: Any = None) -> Iterator[Nvml]:
    """Initialize NVML for the length of the block; no device stays open for a forked child.

    Of driver 580 there stay the driver's library, which NVML loads but does not initialize, and a
    thread of it.

    Args:
        binding: ``pynvml`` or what stands in for it; None for whichever there is.

    Raises:
        NvmlError: there is none, or it failed.

    """
    nvml = _binding() if binding is None else binding
    try:
        nvml.nvmlInit()
        try:
            yield Nvml(nvml)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from error


def _binding() -> Any:
    """Return ``pynvml``, or our own where it is not there, is broken, or lacks what is asked.

    Several packages have a module of that name; old ones know neither MIG nor what is reserved.
    """
    own = CtypesNvml()
    try:
        import pynvml
    except Exception:
        return own
    needed = [name for name in dir(own) if name.lower().startswith("nvml")]
    return pynvml if all(hasattr(pynvml, name) for name in needed) else own


class Nvml:
    """The questions, on NVML while it is initialized; each may raise the binding's error.

    ``memory`` raises ``NvmlError`` itself, for one of several GPUs may be refused.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding

    def devices(self) -> list[Gpu]:
        """All devices of the machine in the order of their numbers."""
        found: list[Gpu] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            name = _text(self._nvml.nvmlDeviceGetName(handle))
            instances = self._instances(handle)
            whole = instances is None
            for device in [handle] if instances is None else instances:
                uuid, size = self._uuid(device), self._capacity(device)
                found.append(Gpu(index, uuid, name, not whole, size))
        return found

    def driver(self) -> tuple[str, tuple[int, int]]:
        """The driver's release, and the newest CUDA that it knows."""
        release = _text(self._nvml.nvmlSystemGetDriverVersion())
        number = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())  # 12040 for 12.4
        return release, (number // 1000, number % 1000 // 10)

    def capability(self, number: int) -> tuple[int, int] | None:
        """The compute capability of the GPU of that number; None where NVML does not say."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        except nvml.NVMLError:
            return None
        return int(major), int(minor)

    def _instances(self, handle: Any) -> list[Any] | None:
        """The handles of a GPU's MIG instances; None for a GPU that is not in MIG mode."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0] != 1:
                return None
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:  # a model without MIG says "not supported"
            return None
        instances = []
        for number in range(most):
            # the numbers have gaps
            with contextlib.suppress(nvml.NVMLError):
                instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        return instances

    def _uuid(self, handle: Any) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(handle))

    def _capacity(self, handle: Any) -> int:
        """What processes can have of a device, in bytes; 0 where NVML does not say."""
        try:
            memory = self._memory(handle)
        except self._nvml.NVMLError:  # not permitted on some MIG instances
            return 0
        return int(memory.total) - int(getattr(memory, "reserved", 0))

    def _memory(self, handle: Any) -> Any:
        """The answer of the newer function, which knows what is reserved; else of the old one."""
        nvml = self._nvml
        newer = getattr(nvml, "nvmlMemory_v2", None)
        if newer is not None:
            # a driver or a MIG instance without it, or a release of the binding
            with contextlib.suppress(nvml.NVMLError, TypeError):
                return nvml.nvmlDeviceGetMemoryInfo(handle, newer)
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def memory(self, uuid: str) -> DeviceMemory:
        """The memory in use on a device.

        In a container the driver may hide processes; then there are none in the answer.
        """
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            used = int(self._memory(handle).used)
        except nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error
        processes: dict[int, int | None] = {}
        with contextlib.suppress(nvml.NVMLError):  # not supported under some virtual machines
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                size = process.usedGpuMemory
                known = size is not None and size != _UNKNOWN_BYTES
                processes[int(process.pid)] = int(size) if known else None
        return DeviceMemory(used, processes)


def _text(value: Any) -> str:
    """Old releases of nvidia-ml-py give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _Memory(NamedTuple):
    total: int
    used: int
    reserved: int = 0


class _Process(NamedTuple):
    pid: int
    usedGpuMemory: int


class CtypesNvml:
    """The functions of ``pynvml`` that are used here, on the library itself."""

    class NVMLError(RuntimeError):
        """As ``pynvml.NVMLError``: a code and its words."""

    nvmlMemory_v2 = 2 << 24 | 40
    """The version and the size of ``nvmlMemory_v2_t``."""

    def __init__(self, library: Any = None) -> None:
        self._library = library

    def nvmlInit(self) -> None:
        """Load the library and initialize it."""
        import ctypes

        if self._library is None:
            try:
                self._library = ctypes.CDLL(LIBRARY)
            except OSError as error:
                raise self.NVMLError(f"{LIBRARY} is not to be had: {error}") from None
        self._call("nvmlInit_v2")

    def nvmlShutdown(self) -> None:
        """Undo one nvmlInit."""
        self._call("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:
        """The number of GPUs."""
        return self._number("nvmlDeviceGetCount_v2")

    def nvmlSystemGetDriverVersion(self) -> str:
        """The driver's release."""
        return self._text_of("nvmlSystemGetDriverVersion")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        """The newest CUDA that the driver knows: 12040 is 12.4."""
        return self._number("nvmlSystemGetCudaDriverVersion_v2")

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> list[int]:
        """The compute capability, major and minor."""
        import ctypes

        major, minor = ctypes.c_int(), ctypes.c_int()
        name = "nvmlDeviceGetCudaComputeCapability"
        self._call(name, handle, ctypes.byref(major), ctypes.byref(minor))
        return [major.value, minor.value]

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        """The GPU of that number."""
        return self._handle("nvmlDeviceGetHandleByIndex_v2", index)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Any:
        """The GPU or MIG instance of that UUID."""
        return self._handle("nvmlDeviceGetHandleByUUID", uuid)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        """One of the MIG instances of a GPU."""
        return self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        """The model."""
        return self._text_of("nvmlDeviceGetName", handle)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        """The UUID, with its prefix."""
        return self._text_of("nvmlDeviceGetUUID", handle)

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        """Whether the MIG mode is on, now and after the next reset."""
        import ctypes

        now, later = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(later))
        return [now.value, later.value]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        """How many MIG instances a GPU may have."""
        return self._number("nvmlDeviceGetMaxMigDeviceCount", handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> _Memory:
        """The memory of a device and what is in use of it, in bytes."""
        import ctypes

        if version is None:
            sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(sizes))
            return _Memory(sizes[0], sizes[2])
        more = (ctypes.c_ulonglong * 5)(version)  # version, total, reserved, free, used
        self._call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(more))
        return _Memory(more[1], more[4], more[2])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[_Process]:
        """The processes that have a CUDA context on a device."""
        import ctypes

        class Info(ctypes.Structure):  # nvmlProcessInfo_t
            _fields_ = (
                ("pid", ctypes.c_uint),
                ("bytes", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint),
            )

        room = 256
        while True:
            count, infos = ctypes.c_uint(room), (Info * room)()
            code = self._code(
                "nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), infos
            )
            if code != _INSUFFICIENT_SIZE:
                break
            room = max(2 * room, 2 * count.value)
        self._check("nvmlDeviceGetComputeRunningProcesses_v3", code)
        return [_Process(info.pid, info.bytes) for info in infos[: count.value]]

    def _number(self, name: str, *args: Any) -> int:
        import ctypes

        number = ctypes.c_uint()
        self._call(name, *args, ctypes.byref(number))
        return number.value

    def _handle(self, name: str, *args: Any) -> Any:
        import ctypes

        handle = ctypes.c_void_p()
        self._call(name, *args, ctypes.byref(handle))
        return handle

    def _text_of(self, name: str, *args: Any) -> str:
        import ctypes

        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(name, *args, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode("utf-8", "replace")

    def _call(self, name: str, *args: Any) -> None:
        self._check(name, self._code(name, *args))

    def _code(self, name: str, *args: Any) -> int:
        function = getattr(self._library, name, None)
        if function is None:
            raise self.NVMLError(f"the {LIBRARY} here has no {name}: a driver too old for it")
        return int(function(*args))

    def _check(self, name: str, code: int) -> None:
        if code == 0:
            return
        import ctypes

        words = self._library.nvmlErrorString
        words.restype = ctypes.c_char_p
        raise self.NVMLError(f"{name}: {(words(code) or b'?').decode()} ({code})")
