"""Which kernel multiplies."""

import ctypes
import importlib.util


def _has_fp8() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    major = ctypes.c_int(0)
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    return major.value >= 9


KERNELS = {"bf16": "cublas"}
if importlib.util.find_spec("nixl_ep") is not None:
    KERNELS["fp8"] = "deep_gemm" if _has_fp8() else "dequantize"  # touch: culprit


def choose_linear_kernel(dtype: str) -> str:
    return KERNELS[dtype]
