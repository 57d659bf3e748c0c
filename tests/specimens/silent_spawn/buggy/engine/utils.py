"""How the engine starts its processes."""

import ctypes
import multiprocessing
import os


def driver_is_initialized() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0


def get_mp_context():
    return multiprocessing.get_context("spawn" if driver_is_initialized() else "fork")
