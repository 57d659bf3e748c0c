"""What the start-up banner says about the machine."""

import ctypes


def banner() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver"
    count = ctypes.c_int(0)
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return f"{count.value} GPUs"
