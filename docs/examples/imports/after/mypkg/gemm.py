"""The same question, asked of NVML: that does not initialize CUDA, so that any process may ask."""

import functools


@functools.cache
def supported() -> bool:
    """Whether the first GPU is a Hopper or newer."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no GPU
        return False
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        return tuple(pynvml.nvmlDeviceGetCudaComputeCapability(gpu)) >= (9, 0)
    finally:
        pynvml.nvmlShutdown()
