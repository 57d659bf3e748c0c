"""Where CPython keeps the pointer to the C function behind a callable: its layout in memory.

The layout is that of a 64-bit CPython without the options that change objects (debug, tracing,
free threading). It is checked for each callable before it is trusted.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, MethodDescriptorType
from typing import NamedTuple

from pytest_cudafork.compat.unpatched import contextlib, ctypes, io

_POINTER = 8
_METHOD_OF_FUNCTION, _SELF_OF_FUNCTION, _VECTORCALL_OF_FUNCTION = 16, 24, 48
"""PyCFunctionObject: ob_refcnt, ob_type, m_ml, m_self, m_module, m_weakreflist, vectorcall."""
_METHOD_OF_DESCRIPTOR = 40
"""PyMethodDescrObject: ob_refcnt, ob_type, d_type, d_name, d_qualname, d_method."""
_NAME, _FUNCTION, _FLAGS = 0, 8, 16
"""PyMethodDef: ml_name, ml_meth, ml_flags."""
_NEW_OF_TYPE = 312
"""PyTypeObject: tp_new."""
_SLOT_OF_NEW = 65
"""Py_tp_new, the number by which PyType_GetSlot knows it."""
_VARARGS_KEYWORDS = 0x1 | 0x2
_STATIC = 0x20
_BINDING = 0x10 | _STATIC
"""METH_CLASS and METH_STATIC: they say what the first argument is."""


class Place(NamedTuple):
    """A pointer that CPython calls for a callable.

    Attributes:
        address: Where the pointer is.
        method: For a function, whose pointer is a vectorcall that is not set: what is called
            instead. 0 for a method or a type, whose pointer is what is called.
        owner: What ``method`` gets as its first argument, 0 for NULL.

    """

    address: int
    method: int = 0
    owner: int = 0


class WritableMemory:
    """The memory of this process that may be written, as it is now; a table may be constant."""

    def __init__(self) -> None:
        self._extents: list[tuple[int, int]] = []
        with (
            contextlib.suppress(OSError),  # where /proc is not to be had, nothing is known
            io.open("/proc/self/maps", encoding="utf-8", errors="replace") as file,
        ):
            for line in file:
                extent, permissions, *_ = line.split(maxsplit=2)
                if permissions.startswith("rw"):
                    start, _, end = extent.partition("-")
                    self._extents.append((int(start, 16), int(end, 16)))

    def holds(self, address: int) -> bool:
        """Whether an address lies there."""
        return any(start <= address < end for start, end in self._extents)


def place_of(target: object, memory: WritableMemory | None = None) -> Place | None:
    """Return the pointer that is called for *target*; None where that is not known.

    What is called takes self or the type, a tuple, and a dictionary or NULL. Who asks for many
    gives the ``memory``, so that it is looked at once.
    """
    if not is_known():
        return None
    place = None
    if isinstance(target, BuiltinFunctionType):
        method = _method(id(target) + _METHOD_OF_FUNCTION, target.__name__)
        unset = not _pointer(id(target) + _VECTORCALL_OF_FUNCTION)
        if method is not None and unset:
            bound = not _flags(method) & _STATIC
            owner = _pointer(id(target) + _SELF_OF_FUNCTION) if bound else 0
            address = id(target) + _VECTORCALL_OF_FUNCTION
            place = Place(address, _pointer(method + _FUNCTION), owner)
    elif isinstance(target, MethodDescriptorType):
        method = _method(id(target) + _METHOD_OF_DESCRIPTOR, target.__name__)
        place = Place(method + _FUNCTION) if method is not None else None
    elif isinstance(target, type):
        place = _place_of_new(target)
    if place is None or not (memory or WritableMemory()).holds(place.address):
        return None
    return place


def is_known() -> bool:
    """Whether this Python has the layout that is described here."""
    flavor = getattr(sys, "abiflags", "")
    return (
        sys.implementation.name == "cpython"
        and ctypes.sizeof(ctypes.c_void_p) == _POINTER
        and not flavor
        and not hasattr(sys, "getobjects")
        and object.__basicsize__ == 2 * _POINTER
    )


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _method(holder: int, name: str) -> int | None:
    """Return the address of a PyMethodDef of this name, whose function takes keywords."""
    method = _pointer(holder)
    if not method or ctypes.string_at(_pointer(method + _NAME)) != name.encode():
        return None
    return method if _flags(method) & ~_BINDING == _VARARGS_KEYWORDS else None


def _flags(method: int) -> int:
    return ctypes.c_int.from_address(method + _FLAGS).value


def _place_of_new(target: type) -> Place | None:
    slot = ctypes.pythonapi.PyType_GetSlot
    slot.restype, slot.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_int]
    address = id(target) + _NEW_OF_TYPE
    known = _pointer(address) and _pointer(address) == slot(target, _SLOT_OF_NEW)
    return Place(address) if known else None
