"""What the test machine can do; conditions for skipping tests."""

import ctypes


def _capability() -> tuple[int, int]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (0, 0)
    major = ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    return (major.value, 0)


class LazyVal:
    """A condition that is computed when somebody asks for its truth."""

    def __init__(self, compute) -> None:
        self._compute = compute

    def __bool__(self) -> bool:
        return self._compute()


SM80OrLater = LazyVal(lambda: _capability() >= (8, 0))
