"""Sizes are read as people write them, and written as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.settings.sizes import read_size, spell_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 << 30),
        ("20 GB", 20 << 30),
        ("0.5g", 1 << 29),
        ("512M", 512 << 20),
        (" 7 ", 7),
        ("1.5KiB", 1536),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1,5G", "20 GiBs", "٣G", "1e9", "nan"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write 512M or 4G"):
        read_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (20 << 30, "20 GiB"), (1536 << 20, "1.5 GiB"), (674 << 20, "674 MiB")],
)
def test_a_size_is_spelled_in_the_largest_unit(size: int, text: str) -> None:
    assert spell_size(size) == text


@given(st.integers(0, 1 << 45))
def test_what_is_spelled_can_be_read_again(size: int) -> None:
    assert read_size(spell_size(size)) == pytest.approx(size, rel=0.06)
