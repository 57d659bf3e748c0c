"""The devices that kernels can be tuned for."""

import ctypes


def available_devices() -> list[str]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ["cpu"]
    count = ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetCount(ctypes.byref(count))
    return ["cpu"] + [f"cuda:{index}" for index in range(count.value)]
