"""What tests of the engine's processes share."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.engine.support.process import EVENTS, Milestone


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Milestone]:
    """What a forked core reaches in the event "sleep", which lasts for ever."""
    milestone = Milestone()

    def sleep_for_ever() -> None:
        milestone.reach()
        while True:
            time.sleep(3600)

    monkeypatch.setitem(EVENTS, "sleep", sleep_for_ever)
    yield milestone
    milestone.close()
