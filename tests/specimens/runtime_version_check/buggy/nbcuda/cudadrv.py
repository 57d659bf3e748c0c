"""Driver and runtime."""

import ctypes


class Driver:
    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            self.library = None

    def get_version(self) -> int:
        version = ctypes.c_int(0)
        if self.library is not None:
            self.library.cuInit(0)
            self.library.cuDriverGetVersion(ctypes.byref(version))
        return version.value
