"""What a session may say of its intent."""

from __future__ import annotations

import pytest

from pytest_cudafork.settings.intent import (
    GPU_SEEN,
    GPU_SKIPPED,
    SPAWNED,
    check,
    effective,
    parse_expected,
    parse_kinds,
)


def test_a_number_of_gpus_is_a_whole_one() -> None:
    assert [parse_expected(text) for text in ("0", "8", "72")] == [0, 8, 72]
    for text in ("", "-1", "two", "1.5", "٣", "1000000"):
        with pytest.raises(ValueError, match="is not a number of GPUs: use 0 for none"):
            parse_expected(text)


def test_kinds_are_named() -> None:
    assert parse_kinds("spawned, gpu-seen,spawned") == (SPAWNED, GPU_SEEN)
    assert parse_kinds("") == ()
    with pytest.raises(ValueError, match="'skipped' is not an intent: use spawned, gpu-skipped"):
        parse_kinds("skipped")


@pytest.mark.parametrize(
    ("kinds", "expected", "checked", "words"),
    [
        ((GPU_SKIPPED,), None, True, "no GPU is promised"),
        ((GPU_SKIPPED,), 0, True, "no GPU is promised"),
        ((GPU_SEEN,), None, True, "the session is none without a GPU"),
        ((GPU_SEEN,), 2, True, "the session is none without a GPU"),
        ((GPU_SEEN,), 0, False, "nobody watches for touches: add --cuda-fork-check"),
    ],
)
def test_an_error_that_can_never_be_one_is_refused(
    kinds: tuple[str, ...], expected: int | None, checked: bool, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check(kinds, expected, checked=checked)
    check(("all",), expected, checked=checked)


def test_all_is_what_can_be_known() -> None:
    assert effective(("all",), None, checked=True) == {SPAWNED}
    assert effective(("all",), 2, checked=True) == {SPAWNED, GPU_SKIPPED}
    assert effective(("all",), 0, checked=True) == {SPAWNED, GPU_SEEN}
    assert effective(("all",), 0, checked=False) == {SPAWNED}
    assert effective((GPU_SKIPPED,), 2, checked=True) == {GPU_SKIPPED}
    assert effective((), 2, checked=True) == frozenset()
