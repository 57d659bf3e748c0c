"""The engine core process."""

import ctypes


def run_engine_core(connection) -> None:
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        status = 100
    connection.send({0: "cuda", 100: "cpu"}.get(status, f"CUDA driver initialization failed: {status}"))
