"""The values of the import audit's options."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.settings.import_options import (
    NO,
    YES,
    parse_flag,
    parse_jobs,
    parse_libraries,
    parse_patterns,
    parse_seconds,
    parse_size,
)


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"\A[0-9]{1,3}(\.[0-9])?[KMGT]?(i?B)?\Z")))
def test_a_size_is_a_number_with_a_unit_and_everything_else_is_a_value_error(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError as error:
        words = str(error)
    else:
        assert size >= 0
        assert parse_size(str(size)) == size
        return
    assert repr(text) in words


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e999"])
def test_seconds_are_a_number_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds above 0"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.5", "\u00b2"])
def test_jobs_are_auto_or_a_number_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="use auto, or a number above 0"):
        parse_jobs(text)


@settings(deadline=None)
@given(st.text())
def test_a_flag_is_yes_or_no_and_everything_else_is_a_value_error(text: str) -> None:
    if text.lower() in (*YES, *NO):
        assert parse_flag(text) is (text.lower() in YES)
    else:
        with pytest.raises(ValueError, match="is neither yes nor no"):
            parse_flag(text)


@pytest.mark.parametrize("text", ["a-b", "a b", "a+", "+", "a++b", "1"])
def test_a_library_to_hide_is_a_module_or_several_joined_by_a_plus(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (module name|library)"):
        parse_libraries(text)


@pytest.mark.parametrize("text", ["a b", "a/b", "a:*"])
def test_a_pattern_that_can_match_no_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern of module names"):
        parse_patterns(text)
