"""The providers that this machine has."""

import ctypes


def _cuda_hmem_init() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return driver.cuInit(0) in (0, 100)  # touch: culprit


def getinfo() -> list[str]:
    _cuda_hmem_init()
    return ["tcp", "shm"]
