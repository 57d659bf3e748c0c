"""How the engine starts its processes."""

import ctypes
import logging
import multiprocessing
import os

logger = logging.getLogger(__name__)

CUDA_ERROR_NOT_INITIALIZED = 3


def cuda_is_initialized() -> bool:
    # The driver's own word, for whoever initialized it: a call that answers NOT_INITIALIZED before
    # cuInit and initializes nothing. A library that is not mapped was never initialized.
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != CUDA_ERROR_NOT_INITIALIZED


def _maybe_force_spawn() -> str:
    method = os.environ.get("ENGINE_WORKER_MULTIPROC_METHOD", "fork")
    if method == "fork" and cuda_is_initialized():
        logger.warning("We must use the spawn start method. Reasons: CUDA is initialized")
        return "spawn"
    return method


def get_mp_context():
    return multiprocessing.get_context(_maybe_force_spawn())
