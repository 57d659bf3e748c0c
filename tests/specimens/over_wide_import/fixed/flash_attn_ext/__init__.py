"""The compiled kernels, which look for their GPU when loaded."""

import ctypes


def _load() -> int:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        return 100


STATUS = _load()
