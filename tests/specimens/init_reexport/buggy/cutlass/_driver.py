"""The DSL's binding of the driver."""

import ctypes


def device_properties() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 100
    return driver.cuInit(0)
