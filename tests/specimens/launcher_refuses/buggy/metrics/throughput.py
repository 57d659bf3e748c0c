"""How fast this device could be."""

import ctypes


def _major() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    major = ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    return major.value


PEAK = {8: 312e12, 9: 989e12}.get(_major(), 1e12)  # touch: culprit


def peak_flops() -> float:
    return PEAK
