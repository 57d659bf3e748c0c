"""The watch travels in variables, and nothing else is read as one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.handed_on import ROOT, STARTUP, WatchSettings, variables_for_program
from pytest_cudafork.settings import environment

TEXTS = st.text(max_size=20)


@given(TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=3), st.booleans())
def test_settings_survive_the_way(
    ledger: str, device: str, level: str, allow: list[str], detailed: bool
) -> None:
    settings = WatchSettings(ledger, device, level, tuple(allow), detailed)
    assert WatchSettings.from_text(settings.to_text()) == settings


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ledger": "x"}', "1 2", "[" * 9000])
def test_other_text_is_no_settings(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        WatchSettings.from_text(text)


def test_a_program_finds_the_start_up_before_all_else() -> None:
    settings = WatchSettings("/x/ledger", "absent", "poison")
    given = variables_for_program(settings, "77", {environment.PYTHON_PATH: "a"})
    assert given[environment.PYTHON_PATH] == os.pathsep.join([STARTUP, "a"])
    assert given[environment.OWNER] == "77"
    assert WatchSettings.from_text(given[environment.WATCH]) == settings
    assert Path(STARTUP, "sitecustomize.py").is_file()
    assert Path(ROOT, "pytest_cudafork").is_dir()
    again = variables_for_program(settings, "77", given)
    assert again[environment.PYTHON_PATH] == given[environment.PYTHON_PATH]
