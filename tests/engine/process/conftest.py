"""What tests of the engine's processes share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.support.process import Milestone


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Milestone]:
    """What a forked core reaches in the event "sleep", which lasts for ever."""
    from tests.engine.support.process import EVENTS, Milestone  # there may be no msgspec

    milestone = Milestone()

    def sleep_for_ever() -> None:
        milestone.reach()
        while True:
            time.sleep(3600)

    monkeypatch.setitem(EVENTS, "sleep", sleep_for_ever)
    yield milestone
    milestone.close()
