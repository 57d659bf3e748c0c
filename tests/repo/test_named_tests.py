"""tox names tests that are there: pytest runs none at all where one of them is missing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"(?<![\w./-])tests/[\w./-]*\w")


def test_tests_that_tox_names_are_there() -> None:
    named = _PATH.findall((ROOT / "tox.ini").read_text())
    assert "tests/sessions/plugins" in named
    assert [one for one in named if not (ROOT / one).exists()] == []
