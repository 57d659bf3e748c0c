"""How many GPUs there are."""

import ctypes


def count_gpus() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) == 0:  # touch: culprit
        driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value
