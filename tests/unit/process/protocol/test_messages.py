"""Tests of the messages: each comes back as it was, and what is none is refused with words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.process.protocol import frames, messages, server_messages

MESSAGES: list[messages.Message] = [
    messages.Job("a.b:c", ["request", "stdout"]),
    messages.Run(["a"], None, {"cwd": "/"}, None, None),
    messages.Report({"when": "call"}, wait=True),
    messages.CaughtWarning(None, "a.B", "text", "file.py", 3, None),
    messages.TestOver(last=True, shouldstop="reason"),
    messages.TestOver(last=False, ahead=True, passed=b"times"),
    messages.Passed(b"times"),
    messages.AsksPosition(),
    messages.Shown({"at": None, "line": ""}),
    messages.Run(["a"], ["b"], {"cwd": "/"}, None, None, None, [["c"], None], [1, 2, 3, None]),
    messages.TestMissing(["a"], []),
    messages.SessionStop("why", None),
    messages.Exited("text", "traceback"),
    messages.Returned(b"pickle", "1"),
    messages.Done(),
    server_messages.Ready(None, 2, {"tests": 5}),
    server_messages.ChildForked(7, b"cookie"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: one.kind)
def test_a_message_comes_back_as_it_was(message: messages.Message) -> None:
    (plain,) = frames.Decoder().feed(frames.encode(message.to_plain()))
    assert messages.decode(plain) == message


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"kind": "surprise"}, "there are no messages of kind 'surprise'"),
        ({"kind": "phase"}, "kind 'phase' is damaged"),
        ({"kind": "phase", "phase": 5}, "phase is 5"),
        ({"kind": "phase", "phase": "call", "more": 1}, "more"),
        ({"kind": "missing", "found": ["a", 1], "errors": []}, "found is"),
        ({"kind": "stop", "reason": "a", "returncode": "b"}, "returncode is 'b'"),
        ({"kind": "warnings", "warnings": [5]}, "warnings is 5"),
        ({"kind": "warnings", "warnings": [{"type": 5}]}, "type is 5"),
        ({"kind": "ready", "why_not": [], "ahead": 1, "about": {}}, "why_not is"),
    ],
)
def test_what_is_no_message_is_refused_with_words(plain: dict[str, Any], words: str) -> None:
    with pytest.raises(frames.FrameError, match=words):
        messages.decode(plain)
    assert messages.decode_or_none(plain) is None


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=30)
@given(st.data())
def test_fields_of_any_kind_make_a_message_or_an_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(messages.KINDS)))
    names = st.sampled_from([*messages.KINDS[kind].types, "other"])
    plain = {**data.draw(st.dictionaries(names, _VALUES)), "kind": kind}
    message = messages.decode_or_none(plain)
    if message is None:
        with pytest.raises(frames.FrameError):
            messages.decode(plain)
    else:
        assert messages.decode(message.to_plain()) == message


def test_every_field_of_every_message_is_looked_at() -> None:
    for cls in messages.KINDS.values():
        assert cls.types.keys() == {
            name
            for name, annotation in cls.__annotations__.items()
            if not annotation.startswith("ClassVar")
        }
    assert messages.decode_or_none(None) is None


def test_the_warnings_of_a_call_are_messages_of_their_own() -> None:
    one = messages.CaughtWarning(b"x", "a.B", "text", "file.py", 3, None)
    assert messages.CaughtWarnings([vars(one)]).each() == [one]
