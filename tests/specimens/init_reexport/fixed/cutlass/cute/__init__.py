"""The kernel language."""

from cutlass._driver import device_properties

DRIVER_STATUS = device_properties()


def jit(function):
    return function
