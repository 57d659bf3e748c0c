"""The decorators."""

from nbcuda.cudadrv import Driver

RUNTIME_VERSION = 11000
SUPPORTS_MINOR_COMPATIBILITY = Driver().get_version() >= RUNTIME_VERSION  # touch: culprit


class Dispatcher:
    def __init__(self, py_func) -> None:
        self.py_func = py_func


def jit(function) -> Dispatcher:
    return Dispatcher(function)
