"""Tests of warnings on their way from a child."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from pytest_cudafork.process.protocol import caught_warnings


class OwnWarning(UserWarning):
    """A warning whose class both sides know."""


def caught(warning: Warning) -> warnings.WarningMessage:
    with warnings.catch_warnings(record=True) as all_of_them:
        warnings.simplefilter("always")
        warnings.warn(warning, stacklevel=1)
    return all_of_them[0]


def test_a_warning_comes_back_with_its_class_text_file_and_line() -> None:
    sent = caught(OwnWarning("mind this"))
    loaded = caught_warnings.load(caught_warnings.pack(sent))
    assert type(loaded.message) is OwnWarning
    assert str(loaded.message) == "mind this"
    assert (loaded.filename, loaded.lineno) == (sent.filename, sent.lineno)


class SinceWarning(DeprecationWarning):
    """A warning that makes its text of what it is given."""

    def __init__(self, name: str, since: str = "?") -> None:
        super().__init__(f"{name} is deprecated since {since}")
        self.since = since


class OddWarning(SinceWarning):
    """A warning that cannot be made of its text."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name, since="2.0")


@pytest.mark.parametrize("warning", [SinceWarning("it", "2.0"), OddWarning(name="it")])
def test_one_that_makes_its_text_keeps_it(warning: SinceWarning) -> None:
    loaded: Any = caught_warnings.load(caught_warnings.pack(caught(warning))).message
    assert (type(loaded), loaded.since) == (type(warning), "2.0")
    assert str(loaded) == "it is deprecated since 2.0"


def test_one_that_does_not_pickle_has_the_name_of_its_class_and_its_text() -> None:
    class Unpicklable(UserWarning):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.lock = threading.Lock()

    packed = caught_warnings.pack(caught(Unpicklable("mind this")))
    assert packed.pickled is None
    loaded = caught_warnings.load(packed)
    assert type(loaded.message).__name__ == "Unpicklable"
    assert str(loaded.message) == "mind this"
    assert isinstance(loaded.message, Warning)
    assert loaded.message.args == ("mind this",)  # of which pytest-xdist makes it anew


def test_a_known_class_stays_the_base_of_one_that_cannot_be_loaded() -> None:
    packed = caught_warnings.pack(caught(OwnWarning("mind this")))
    for pickled in (b"junk", b"\x80\x04K\x05."):  # no pickle; that of a number
        loaded = caught_warnings.load(packed.changed(pickled=pickled))
        assert isinstance(loaded.message, OwnWarning)
        assert str(loaded.message) == "mind this"
    unknown = packed.changed(pickled=None, type="no.such.Name")
    assert type(caught_warnings.load(unknown).message).__name__ == "Name"
