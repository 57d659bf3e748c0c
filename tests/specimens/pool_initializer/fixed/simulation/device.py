"""Contexts on devices."""

import ctypes


def _init() -> int:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        return 100


def count_devices() -> int:
    count = ctypes.c_int(0)
    if _init() == 0:
        ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
    return count.value


class Context:
    """The right to compute on a device; the host where there is none."""

    def __init__(self, device: int | None) -> None:
        self.device = device

    @classmethod
    def create(cls, devices: int) -> "Context":
        try:
            status = ctypes.CDLL("libcuda.so.1").cuInit(0)
        except OSError:
            status = 100
        if status not in (0, 100):
            raise RuntimeError(f"cuInit failed: initialization error {status}")
        return cls(0 if status == 0 and devices else None)
