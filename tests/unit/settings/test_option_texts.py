"""What the texts of options mean, and what is said of those that mean nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.settings import Level, option_texts, options
from pytest_cudafork.settings.option_texts import parse_level


@settings(deadline=None)
@given(st.text())
def test_a_level_is_one_of_four_words_and_everything_else_is_a_value_error(text: str) -> None:
    words = {level.value for level in Level}
    if text in words:
        assert parse_level(text).value == text
    else:
        with pytest.raises(ValueError, match="poison, fork, touch"):
            parse_level(text)


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1", 1 << 30), ("0.5", 1 << 29)])
def test_memory_is_a_number_of_gib(text: str, size: int) -> None:
    assert option_texts.parse_gib(text) == size


@pytest.mark.parametrize("text", ["", "1GiB", "-1", "nan", "inf", "much"])
def test_anything_else_is_no_memory(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of GiB, as in 1 or"):
        option_texts.parse_gib(text)


def test_the_flag_alone_allows_one_gib() -> None:
    assert option_texts.parse_gib(str(options.SETTLE.flag_value)) == 1 << 30


def test_a_profile_has_a_name() -> None:
    assert option_texts.parse_profile("/x/p.json") == "/x/p.json"
    with pytest.raises(ValueError, match="it needs the name of a file"):
        option_texts.parse_profile("")


@pytest.mark.parametrize(
    ("parse", "right", "wrong"),
    [
        (option_texts.parse_isolate, ("none", "fork", "forkserver", "spawn", "auto"), "frok"),
        (option_texts.parse_scope, ("test", "class", "module"), "session"),
        (option_texts.parse_health, ("fail", "recover", "off"), "well"),
        (option_texts.parse_update, ("all", "shrink"), "grow"),
        (option_texts.parse_captures, ("check", "all", "audit", "off"), "look"),
        (option_texts.parse_graphs, ("auto", "software", "cuda"), "hip"),
    ],
)
def test_words_are_taken_as_they_are_and_others_refused_with_those_that_there_are(
    parse: Callable[[str], str], right: tuple[str, ...], wrong: str
) -> None:
    assert [parse(text) for text in right] == list(right)
    for text in (wrong, "", right[0].upper()):
        with pytest.raises(ValueError, match=right[-1]):
            parse(text)


def test_a_limit_is_a_number_of_seconds_or_none() -> None:
    assert option_texts.parse_limit("2.5") == 2.5
    assert option_texts.parse_limit("inf") == math.inf
    for text in ("0", "-1", "nan", "soon", ""):
        with pytest.raises(ValueError, match="is not a time limit: use a number of seconds"):
            option_texts.parse_limit(text)


def test_what_is_read_elsewhere_is_read_there() -> None:
    assert option_texts.parse_expected("2") == 2
    assert option_texts.parse_kinds("all") == ("all",)
    assert option_texts.parse_gpus("0,1") is not None
    assert option_texts.parse_marker_map("") is not None
    for parse in (option_texts.parse_expected, option_texts.parse_kinds, option_texts.parse_gpus):
        with pytest.raises(ValueError, match=r"."):
            parse("?")
