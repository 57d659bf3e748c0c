"""The words for GPUs: the value of the option, and the arguments of the marker."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.settings.gpu_requests import (
    SIGNATURE,
    WAIT_SECONDS,
    GpuChoice,
    GpuWish,
    is_gpu_name,
    parse_gpus,
    read_gpus_mark,
)
from pytest_cudafork.settings.markers import MARKERS

NUMBERS = st.integers(min_value=0, max_value=999_999)
UUIDS = st.from_regex(r"(GPU|MIG)-[0-9a-f]{2,8}(-[0-9a-f]{4}){0,3}", fullmatch=True)


def mark(*args: Any, **kwargs: Any) -> pytest.Mark:
    """Return the marker as an item would have it."""
    return pytest.Mark("gpus", args, kwargs, _ispytest=True)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("auto", GpuChoice()),
        ("0", GpuChoice(most=0, text="0")),
        ("2", GpuChoice(most=2, text="2")),
        ("0,2", GpuChoice(names=("0", "2"), text="0,2")),
        ("2,", GpuChoice(names=("2",), text="2,")),
        ("GPU-5466639d", GpuChoice(names=("GPU-5466639d",), text="GPU-5466639d")),
        (" 1 , MIG-07 ", GpuChoice(names=("1", "MIG-07"), text="1 , MIG-07")),
    ],
)
def test_a_number_counts_and_a_list_names(text: str, choice: GpuChoice) -> None:
    assert parse_gpus(text) == choice


@pytest.mark.parametrize(
    "text", ["", ",", "-1", "1.5", "two", "0,,1", "0;1", "cuda:0", "GPU-", "01"]
)
def test_what_names_no_gpus_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="write auto, a number of GPUs as in 2, or a list"):
        parse_gpus(text)


def test_a_gpu_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'0,1,0' names 0 twice"):
        parse_gpus("0,1,0")


@pytest.mark.slow
@given(st.lists(NUMBERS.map(str) | UUIDS, min_size=2, max_size=8, unique=True))
def test_every_list_of_names_is_read_as_it_stands(names: list[str]) -> None:
    assert parse_gpus(",".join(names)).names == tuple(names)


@given(NUMBERS)
def test_every_number_is_a_count(number: int) -> None:
    assert parse_gpus(str(number)) == GpuChoice(most=number, text=str(number))


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    names = [name.strip() for name in text.split(",")]
    if not all(is_gpu_name(name) for name in names if name) and text.strip() != "auto":
        with pytest.raises(ValueError, match=re.escape(repr(text.strip()))):
            parse_gpus(text)
    else:
        with contextlib.suppress(ValueError):  # nothing, or something twice
            assert set(parse_gpus(text).names) <= set(names)


@pytest.mark.parametrize(
    ("given_mark", "wish"),
    [
        (mark(1), GpuWish(1)),
        (mark(n=2), GpuWish(2)),
        (mark(99), GpuWish(99)),
        (mark(1, share=True), GpuWish(1, share=True)),
        (mark(4, wait=2.5), GpuWish(4, wait=2.5)),
        (mark(1, wait=float("inf")), GpuWish(1, wait=float("inf"))),
        (mark(2, memory="20GiB"), GpuWish(2, memory=20 << 30)),
        (mark(1, memory=None), GpuWish(1)),
    ],
)
def test_the_marker_is_read(given_mark: pytest.Mark, wish: GpuWish) -> None:
    assert read_gpus_mark(given_mark) == wish


def test_the_marker_is_advertised_as_it_is_read() -> None:
    assert SIGNATURE in [marker.signature for marker in MARKERS]


def test_a_test_that_does_not_say_waits_as_the_signature_tells() -> None:
    assert read_gpus_mark(mark(1)).wait == WAIT_SECONDS
    assert f"wait={WAIT_SECONDS:.0f}" in SIGNATURE


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (mark(), "takes one number of GPUs, and none is given"),
        (mark(1, 2), "takes one number of GPUs, not 2 arguments"),
        (mark(1, n=2), "takes one number of GPUs, not 2 arguments"),
        (mark(0), r"gpus\(0\): n is a whole number of GPUs above 0"),
        (mark(-1), r"gpus\(-1\): n is a whole number"),
        (mark("2"), r"gpus\('2'\): n is a whole number"),
        (mark(True), r"gpus\(True\): n is a whole number"),
        (mark(1.0), r"gpus\(1.0\): n is a whole number"),
        (mark([0, 1]), r"gpus\(\[0, 1\]\): n is a whole number"),
        (mark(1, share="yes"), "share='yes'.*True or False"),
        (mark(1, share=1), "share=1.*True or False"),
        (mark(1, wait=0), "wait=0.*above 0"),
        (mark(1, wait=float("nan")), "wait=nan.*above 0"),
        (mark(1, wait="long"), "wait='long'.*above 0"),
        (mark(1, memory=20), "memory=20.*in words, as in '20GiB'"),
        (mark(1, memory="much"), "memory='much'.*as in '20GiB'"),
        (mark(1, memory="1KiB"), "memory='1KiB'.*at least 1 MiB"),
        (mark(1, timeout=3), "does not take 'timeout'"),
    ],
)
def test_a_wrong_marker_is_refused_with_the_rule(wrong: pytest.Mark, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_gpus_mark(wrong)
