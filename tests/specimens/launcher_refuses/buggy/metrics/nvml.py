"""What NVML knows about the GPUs; asking it never initializes CUDA."""

import ctypes
import functools


@functools.cache
def _nvml():
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def device_count() -> int:
    library = _nvml()
    count = ctypes.c_uint(0)
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return 0
    return count.value


def device_capability(index: int = 0) -> tuple[int, int] | None:
    library = _nvml()
    if device_count() <= index:
        return None
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return None
    status = library.nvmlDeviceGetCudaComputeCapability(
        handle, ctypes.byref(major), ctypes.byref(minor)
    )
    return (major.value, minor.value) if status == 0 else None
