"""Whether the tile kernels can be used here."""

import importlib.util

from flashinfer import nvml

BLACKWELL = 10


def _device_major() -> int:
    """Major compute capability of device 0, from NVML; 0 where there is none."""
    capability = nvml.device_capability(0)
    return capability[0] if capability else 0


def is_cuda_tile_available() -> bool:
    if importlib.util.find_spec("cuda_tile") is None:
        return False
    return _device_major() >= BLACKWELL
