"""Trains in a worker, after a look at the machine."""

import ctypes

from gpustats.query import count_gpus
from gpustats.worker import run_in_worker


def train() -> str:
    """Runs in the worker; returns the device it trained on."""
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        status = 100
    if status not in (0, 100):
        raise RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu")
    return "cuda" if status == 0 else "cpu"


def main() -> str:
    gpus = count_gpus()
    device = run_in_worker(train)
    return f"trained on {device}, {gpus} GPUs here"
