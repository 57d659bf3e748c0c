"""The decorators."""

from nbcuda.cudadrv import Driver

RUNTIME_VERSION = 11000


def supports_minor_compatibility() -> bool:
    return Driver().get_version() >= RUNTIME_VERSION


class Dispatcher:
    def __init__(self, py_func) -> None:
        self.py_func = py_func


def jit(function) -> Dispatcher:
    return Dispatcher(function)
