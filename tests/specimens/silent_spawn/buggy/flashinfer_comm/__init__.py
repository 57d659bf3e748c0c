"""All-reduce over PCIe."""

import ctypes


def _peer_access() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


HAS_PEER_ACCESS = _peer_access()  # touch: culprit


def all_reduce(values: list[int]) -> int:
    return sum(values)
