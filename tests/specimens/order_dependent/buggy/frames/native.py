"""Device buffers."""

import ctypes


def device_ready() -> bool:
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)  # touch: culprit
    except OSError:
        status = 100
    return status == 0
