"""The words that options share: the levels are what the option takes."""

from __future__ import annotations

import pytest

from pytest_cudafork.settings import Level
from pytest_cudafork.settings.option_texts import parse_level


@pytest.mark.parametrize("level", Level)
def test_a_level_is_read_by_its_name(level: Level) -> None:
    assert parse_level(level.value) is level


def test_each_level_has_the_errors_of_the_one_before() -> None:
    assert [level.value for level in Level] == ["off", "poison", "fork", "touch"]
