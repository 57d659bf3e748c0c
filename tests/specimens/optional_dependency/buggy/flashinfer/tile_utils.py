"""Whether the tile kernels can be used here."""

import ctypes
import importlib.util

BLACKWELL = 10


def _device_major() -> int:
    """Major compute capability of device 0; 0 where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    major = ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    return major.value


def is_cuda_tile_available() -> bool:
    if importlib.util.find_spec("cuda_tile") is None:
        return False
    return _device_major() >= BLACKWELL
