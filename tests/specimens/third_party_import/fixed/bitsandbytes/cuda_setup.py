"""Finds the library to load for this GPU."""

import ctypes


def evaluate_cuda_setup() -> bool:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return cuda.cuInit(0) == 0
