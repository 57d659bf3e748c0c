"""The backends, and which of them finds its hardware."""

import ctypes


class CudaDriver:
    @staticmethod
    def is_active() -> bool:
        try:
            return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
        except OSError:
            return False


class HipDriver:
    @staticmethod
    def is_active() -> bool:
        return False


backends = {"nvidia": CudaDriver, "amd": HipDriver}


def active_backends() -> list[str]:
    return [name for name, driver in backends.items() if driver.is_active()]
