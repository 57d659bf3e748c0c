"""Runs a function in threads that exist already, at their next Python call or return.

It uses the profile hook of the interpreter: from Python 3.12 on there is a call for all threads,
before that the C function behind it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pytest_cudafork.compat.thread_internals import (
    profile_all_threads,
    profile_setter,
    profiler_of_new_threads,
)
from pytest_cudafork.observe.base.stacks import frames_of_threads

Hook = Callable[[str, Any], None]  # event, and its argument: for a "c_call" the function

_EVENTS = ("call", "exception", "line", "return", "c_call", "c_exception", "c_return")


@contextlib.contextmanager
def in_other_threads(hook: Hook) -> Iterator[bool]:
    """Call ``hook`` in each other thread for each event there, for the length of a ``with``.

    Gives whether it is done: not where there is no other thread, or a profiler is at work.
    """
    profiled = sys.getprofile() is not None or profiler_of_new_threads() is not None
    if profiled or len(frames_of_threads()) < 2:
        yield False
        return
    for_all = profile_all_threads()
    if for_all is None:
        with _by_c_function(hook) as done:
            yield done
        return

    owner = threading.get_ident()

    def profile(frame: Any, event: str, argument: Any) -> None:
        if threading.get_ident() != owner:
            hook(event, argument)

    for_all(profile)
    sys.setprofile(None)  # not in this thread
    try:
        yield True
    finally:
        for_all(None)


@contextlib.contextmanager
def _by_c_function(hook: Hook) -> Iterator[bool]:
    if profile_setter() is None:
        yield False
        return
    kind = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    )

    def profile(_: Any, frame: Any, event: int, argument: int | None) -> int:
        name = _EVENTS[event] if event < len(_EVENTS) else "other"
        called = ctypes.cast(argument, ctypes.py_object).value if argument else None
        hook(name, called)
        return 0

    callback = kind(profile)
    _set_in_others(callback)
    try:
        yield True
    finally:
        # ``callback`` must outlive the last call of it, so it goes after the threads let go.
        _set_in_others(None)
        del callback


def _set_in_others(callback: Any) -> None:
    api = ctypes.pythonapi
    for name, result, arguments in (
        ("PyInterpreterState_Get", ctypes.c_void_p, []),
        ("PyInterpreterState_ThreadHead", ctypes.c_void_p, [ctypes.c_void_p]),
        ("PyThreadState_Next", ctypes.c_void_p, [ctypes.c_void_p]),
        ("PyThreadState_Get", ctypes.c_void_p, []),
    ):
        function = getattr(api, name)
        function.restype, function.argtypes = result, arguments
    setter = profile_setter()
    setter.restype = ctypes.c_int
    setter.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    mine = api.PyThreadState_Get()
    state = api.PyInterpreterState_ThreadHead(api.PyInterpreterState_Get())
    address = ctypes.cast(callback, ctypes.c_void_p) if callback is not None else None
    while state:
        if state != mine:
            setter(state, address, None)
        state = api.PyThreadState_Next(state)
