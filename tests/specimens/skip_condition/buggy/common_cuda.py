"""What the test machine can do; conditions for skipping tests."""

import ctypes


def _capability() -> tuple[int, int]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (0, 0)
    major = ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    return (major.value, 0)


SM80OrLater = _capability() >= (8, 0)  # touch: culprit
