"""A number stands with the noun that it asks for."""

from __future__ import annotations

import pytest

from pytest_cudafork.counted import count_of


@pytest.mark.parametrize(
    ("count", "many", "text"),
    [
        (0, "", "0 tests"),
        (1, "", "1 test"),
        (2, "", "2 tests"),
        (1, "tests were", "1 test"),
        (12345, "tests were", "12345 tests were"),
    ],
)
def test_one_is_told_in_the_singular_alone(count: int, many: str, text: str) -> None:
    assert count_of(count, "test", many) == text
