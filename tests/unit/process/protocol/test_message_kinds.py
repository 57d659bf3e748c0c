"""Tests of what all messages have in common."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.process.protocol import message_kinds, messages


def test_a_message_is_like_a_frozen_dataclass() -> None:
    over = messages.TestOver(last=True)
    fields = "last=True, shouldstop=False, shouldfail=False, ahead=False, passed=b''"
    assert repr(over) == f"TestOver({fields})"
    assert over == messages.TestOver(True, False)
    assert hash(over) == hash(messages.TestOver(True, shouldfail=False))
    assert over != messages.TestOver(False)
    assert messages.End() != messages.Done()
    stopped = over.changed(shouldstop="why")
    assert (stopped.last, stopped.shouldstop, over.shouldstop) == (True, "why", False)
    with pytest.raises(AttributeError, match="TestOver is frozen: its last cannot be set"):
        over.last = False  # type: ignore[misc]
    with pytest.raises(AttributeError, match="its shouldstop cannot be deleted"):
        del over.shouldstop
    assert over.last is True


@pytest.mark.parametrize(
    ("values", "named", "words"),
    [
        ((), {}, r"PhaseBegins misses \['phase'\]"),
        (("call", "more"), {}, r"cannot take \['more'\]"),
        (("call",), {"phase": "call"}, r"cannot take \['phase'\]"),
        ((), {"phase": "call", "other": 1}, r"cannot take \['other'\]"),
    ],
)
def test_the_fields_of_a_message_are_given_once_each(
    values: tuple[Any, ...], named: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        messages.PhaseBegins(*values, **named)


def test_a_kind_whose_fields_cannot_be_checked_is_refused_where_it_is_written() -> None:
    with pytest.raises(AssertionError, match="no check for"):

        @message_kinds.of_kind("test_only")
        class Strange(message_kinds.Message):
            field: set[str]

    assert "test_only" not in message_kinds.KINDS
