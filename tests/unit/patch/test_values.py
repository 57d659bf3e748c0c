"""Tests of what a patch may set: what is refused at the call, and what comes back as it was."""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from pytest_cudafork.errors import ChildError
from pytest_cudafork.patch.values import pickled


class Unreadable(Exception):
    """Pickles, and its pickle cannot be read."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def _function_with_a_mock() -> Callable[[], Any]:
    double = mock.MagicMock()
    return lambda: double


def _devnull(mode: str) -> Any:
    return open(os.devnull, mode)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "mock": (mock.Mock, r"unittest\.mock\.Mock, .* the mock unittest\.mock\.Mock would note"),
    "magic mock": (mock.MagicMock, r"the mock unittest\.mock\.MagicMock"),
    "asynchronous mock": (mock.AsyncMock, r"the mock unittest\.mock\.AsyncMock"),
    "by specification": (lambda: mock.create_autospec(len), r"the mock unittest\.mock\."),
    "in a dict": (lambda: {"a": [mock.Mock()]}, r"builtins\.dict, .* the mock"),
    "in a closure": (_function_with_a_mock, r"builtins\.function, .* the mock"),
    "text file": (lambda: _devnull("r"), r"the file '/dev/null', a _io\.TextIOWrapper, is open"),
    "written file": (lambda: _devnull("w"), r"the file '/dev/null'"),
    "raw file": (lambda: _devnull("rb"), r"the file '/dev/null'"),
    "lock": (threading.Lock, r"_thread\.lock, .* TypeError: cannot pickle"),
    "unreadable": (lambda: Unreadable(1, 2), r"Unreadable, .* TypeError"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_thing_in_a_child_is_refused_by_its_name(case: str) -> None:
    make, words = REFUSED[case]
    thing = make()
    try:
        with pytest.raises(ChildError, match=rf"^call: the value, a .*{words}"):
            pickled("call", "value", thing)
    finally:
        if isinstance(thing, io.IOBase):
            thing.close()


def test_plain_values_and_functions_come_back_as_they_were() -> None:
    values = {"a": (1, 2.5, b"", None, {3}), "any": mock.ANY, "mark": mock.sentinel.mark}
    assert pickle.loads(pickled("call", "value", values)) == values
    copies = pickle.loads(
        pickled("call", "key", [io.StringIO("text"), lambda: "called", mock.Mock])
    )
    assert copies[0].getvalue() == "text"
    assert copies[1]() == "called"
    assert copies[2] is mock.Mock
