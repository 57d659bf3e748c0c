"""The standard library as it was before a test could replace any of it.

A test may put something else in the place of any function: ``os.getpid``, ``time.monotonic``,
``open``, a whole file system (pyfakefs). Often that is still in force when the test is to be
reported, its time is up, or its process is to end; and where the process is the test's own, it need
not take it back at all. So what runs beside a test imports modules of the standard library from
here: ``from pytest_cudafork.compat.unpatched import os, time``.

Each is a copy of the module's names. It is no module, so what looks for modules and functions
among the globals of other modules (pyfakefs, freezegun) passes it by. What is state of the module
and not a function of it (``sys.stdout``, ``warnings.filters``) is taken from the module itself.

The functions of ``os`` and ``os.path`` call each other by the names of their modules (``basename``
calls ``os.fspath``), so that they are made anew, with the copies as their globals; so is
``threading.current_thread``, which calls ``get_ident``.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import array as array
    import ast as ast
    import builtins as builtins
    import contextlib as contextlib
    import ctypes as ctypes
    import faulthandler as faulthandler
    import fcntl as fcntl
    import gc as gc
    import inspect as inspect
    import io as io
    import linecache as linecache
    import math as math
    import os as os
    import pickle as pickle
    import random as random
    import re as re
    import resource as resource
    import select as select
    import shutil as shutil
    import signal as signal
    import socket as socket
    import stat as stat
    import struct as struct
    import subprocess as subprocess
    import tempfile as tempfile
    import threading as threading
    import time as time
    import traceback as traceback
    import weakref as weakref
    import zlib as zlib

OFFERED = (
    "array",
    "ast",
    "builtins",
    "contextlib",
    "ctypes",
    "faulthandler",
    "fcntl",
    "gc",
    "inspect",
    "io",
    "linecache",
    "math",
    "os",
    "pickle",
    "random",
    "re",
    "resource",
    "select",
    "shutil",
    "signal",
    "socket",
    "stat",
    "struct",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "traceback",
    "weakref",
    "zlib",
)
"""The modules that can be had from here. One that is not loaded yet is loaded when it is asked
for, which every user does at its top."""


class Copy:
    """The names of a module as they were."""

    def __init__(self, module: ModuleType) -> None:
        vars(self).update(vars(module))


def _copy_of_os(os: ModuleType) -> Copy:
    copy: Any = Copy(os)
    _bind(copy, vars(copy), of=[os])
    copy.path = Copy(os.path)
    # genericpath: where posixpath and ntpath have what does not depend on the system
    others = [os.path, importlib.import_module("genericpath")]
    _bind(copy.path, {**vars(copy.path), "os": copy}, of=others)
    return cast("Copy", copy)


def _bind(copy: Copy, names: dict[str, Any], *, of: list[ModuleType]) -> None:
    """Let the functions of these modules that a copy holds find their names in ``names``."""
    theirs = [vars(module) for module in of]
    for name, value in list(vars(copy).items()):
        if isinstance(value, FunctionType) and any(value.__globals__ is each for each in theirs):
            bound = _bound(value, names)
            names[name] = bound
            setattr(copy, name, bound)


def _bound(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Return the function that finds its names in ``names``."""
    bound = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    bound.__doc__ = function.__doc__
    return bound


def _copy_of_threading(threading: ModuleType) -> Copy:
    copy: Any = Copy(threading)
    if isinstance(copy.current_thread, FunctionType):  # gevent may have put its own there
        copy.current_thread = _bound(copy.current_thread, vars(copy))
    return cast("Copy", copy)


_COPIED = {"os": _copy_of_os, "threading": _copy_of_threading}
"""Those of which functions call each other by the names of their module."""


def __getattr__(name: str) -> Any:
    if name not in OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(name)
    copy = _COPIED.get(name, Copy)(module)
    globals()[name] = copy
    return copy


for _name in OFFERED:
    if _name in sys.modules:
        __getattr__(_name)
