"""Starts ranks from a notebook, by fork."""

import ctypes
import os


def cuda_is_initialized() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0


def launch(function, ranks: int) -> list[int]:
    """Exit statuses of the ranks."""
    if cuda_is_initialized():
        raise RuntimeError(
            "Lightning can't create new processes if CUDA is already initialized."
            " Did you manually call `torch.cuda.*` functions?"
        )
    statuses = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if function(rank) == rank else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return statuses
