"""Text of others is shown without what a terminal would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.story.plain_text import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = probe()  # ümläut", "x = probe()  # ümläut"),
        ("a\tb\u3000c\u00a0d", "a\tb\u3000c\u00a0d"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\r", "a\\nb\\r"),
        ("\u202ereversed", "\\u202ereversed"),
        ("file\udcff.py", "file\\udcff.py"),
        ("\x9b0m", "\\x9b0m"),
    ],
)
def test_what_is_not_printable_is_an_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_written(text: str) -> None:
    plain(text).encode()
    assert plain(plain(text)) == plain(text)
