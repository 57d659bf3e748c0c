"""The engine core process."""

import ctypes


def run_engine_core(connection) -> None:
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        status = 100
    connection.send("cuda" if status == 0 else "cpu" if status == 100 else f"error {status}")
