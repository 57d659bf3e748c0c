"""Where CPython keeps the pointer to a C function; a release that keeps it elsewhere fails here."""

from __future__ import annotations

import ctypes
import datetime
import functools
import sys
from collections import deque
from types import BuiltinFunctionType

import pytest

from pytest_cudafork.compat import cpython_layout, unpatched
from pytest_cudafork.compat.cpython_layout import place_of

pytestmark = pytest.mark.skipif(
    sys.abiflags != "" or sys.implementation.name != "cpython", reason="another layout"
)

FOUND = (
    datetime.timedelta,
    datetime.datetime,
    functools.partial,
    datetime.datetime.fromtimestamp,
    datetime.datetime.astimezone,
)


@pytest.mark.parametrize("target", FOUND, ids=lambda target: target.__name__)
def test_the_pointer_of_a_c_function_is_found(target: object) -> None:
    place = place_of(target)
    assert place is not None
    assert place.method or ctypes.c_void_p.from_address(place.address).value
    is_function = isinstance(target, BuiltinFunctionType)
    assert bool(place.method) is is_function
    assert (place.owner == id(datetime.datetime)) is is_function


def plain() -> None:
    """Do nothing, in Python."""


@pytest.mark.parametrize(
    "target",
    [plain, len, deque.append, "".join, 1, None, object()],
    ids=lambda target: repr(target)[:12],
)
def test_what_is_called_otherwise_has_none(target: object) -> None:
    assert place_of(target) is None


@pytest.mark.parametrize("flavor", ["d", "t"])
def test_another_build_of_python_has_none(flavor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", flavor)
    assert place_of(datetime.timedelta) is None


def test_what_cannot_be_written_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = cpython_layout.WritableMemory()
    assert place_of(datetime.timedelta, memory) == place_of(datetime.timedelta)
    assert not memory.holds(0)
    buffer = ctypes.create_string_buffer(8)
    assert memory.holds(ctypes.addressof(buffer))
    monkeypatch.setattr(cpython_layout.WritableMemory, "holds", lambda self, address: False)
    assert place_of(datetime.timedelta) is None


def test_where_nothing_is_known_of_the_memory_there_is_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(unpatched.io, "open", gone)
    assert place_of(datetime.timedelta) is None
