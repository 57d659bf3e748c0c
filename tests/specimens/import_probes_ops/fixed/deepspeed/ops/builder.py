"""Builders of compiled operators."""

import ctypes

ALL_BUILDERS = {"cpu_adam": (0, 0), "evoformer_attn": (7, 0), "fp_quantizer": (8, 0)}


def _capability() -> tuple[int, int]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (0, 0)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return (major.value, minor.value)


def is_compatible(name: str) -> bool:
    needed = ALL_BUILDERS[name]
    return needed == (0, 0) or _capability() >= needed
