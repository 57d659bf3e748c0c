"""From facts to a level."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge.findings import Level  # noqa: E402
from pytest_cudafork.capture.judge.rules import Facts, level_of  # noqa: E402

SURE = Facts(
    computes=True, refreshed=False, ambiguous=False, whole=True, heavy=False, ran_again=False,
    harmless=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.ERROR),
        ({"computes": False}, Level.SUSPICION),
        ({"refreshed": True}, Level.SUSPICION),
        ({"ambiguous": True}, Level.SUSPICION),
        ({"whole": False}, Level.SUSPICION),
        ({"heavy": True}, Level.SUSPICION),
        ({"heavy": True, "ran_again": True}, Level.ERROR),
        ({"whole": False, "ran_again": True}, Level.ERROR),
        ({"harmless": True}, None),
    ],
)
def test_only_what_is_plain_is_an_error(changes: dict[str, Any], level: Level | None) -> None:
    assert level_of(SURE._replace(**changes)) is level
