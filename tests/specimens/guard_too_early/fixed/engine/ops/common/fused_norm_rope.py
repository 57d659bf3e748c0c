"""Normalization and rotary embedding in one kernel."""

import ctypes


def _warp_size() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 32
    size = ctypes.c_int(32)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(size), 10, 0)
    return size.value


WARP_SIZE = _warp_size()


def rotate(pair: tuple[float, float]) -> tuple[float, float]:
    return -pair[1], pair[0]
