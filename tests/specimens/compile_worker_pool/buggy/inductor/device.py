"""What kernels are compiled for."""

import ctypes
import dataclasses


def _init() -> int:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        return 100


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    type: str
    sms: int

    @classmethod
    def create(cls) -> "DeviceProperties":
        sms = ctypes.c_int(0)
        if _init() != 0:
            return cls("cpu", 1)
        ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(sms), 16, 0)
        return cls("cuda", sms.value)


def active_driver() -> str:
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)  # touch: culprit
    except OSError:
        status = 100
    if status not in (0, 100):
        raise RuntimeError("0 active drivers ([]). There should only be one.")
    return "cuda" if status == 0 else "cpu"
