"""Tests of warnings that travel from a child."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import pytest

from pytest_cudafork.process.protocol.caught_warnings import load, pack
from pytest_cudafork.process.protocol.messages import CaughtWarning


def _caught(warning: Warning, line: str | None = None) -> warnings.WarningMessage:
    return warnings.WarningMessage(warning, type(warning), "a.py", 7, line=line)


class Plain(UserWarning):
    """A warning that pickles."""


class Held(UserWarning):
    """A warning that does not."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.hold = (number for number in range(3))


class Fragile(UserWarning):
    """A warning that pickles and does not come back."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


@pytest.mark.parametrize("line", [None, "the line"])
def test_a_warning_arrives_as_it_was(line: str | None) -> None:
    message = pack(_caught(Plain("look"), line))
    assert (message.type, message.text) == (f"{__name__}.Plain", "look")
    arrived = load(message)
    assert type(arrived.message) is Plain
    assert arrived.category is Plain
    assert str(arrived.message) == "look"
    assert (arrived.filename, arrived.lineno, arrived.line) == ("a.py", 7, line)


@pytest.mark.parametrize("warning", [Held("look"), Fragile("lo", "ok")], ids=["held", "fragile"])
def test_one_that_does_not_pickle_looks_the_same(warning: Warning) -> None:
    arrived = load(pack(_caught(warning)))
    assert isinstance(arrived.message, type(warning))
    assert str(arrived.message) == "look"
    assert arrived.category.__name__ == type(warning).__name__


def test_one_whose_class_is_not_here_has_its_name_and_is_a_warning() -> None:
    message = replace(pack(_caught(Plain("look"))), pickled=None, type="elsewhere.Unknown")
    arrived = load(message)
    assert isinstance(arrived.message, Warning)
    assert (arrived.category.__module__, arrived.category.__name__) == ("elsewhere", "Unknown")
    assert str(arrived.message) == "look"


@pytest.mark.parametrize("pickled", [b"junk", pickle.dumps("no warning"), b""])
def test_what_is_no_pickled_warning_is_told_by_its_text(pickled: bytes) -> None:
    message = CaughtWarning(pickled, "builtins.int", "look", "a.py", 7, None)
    arrived = load(message)
    assert isinstance(arrived.message, Warning)
    assert not isinstance(arrived.message, int)
    assert str(arrived.message) == "look"


def test_a_local_class_travels_by_value() -> None:
    class Local(UserWarning):
        pass

    arrived = load(pack(_caught(Local("look"))))
    assert arrived.category.__name__ == "Local"
    assert str(arrived.message) == "look"
