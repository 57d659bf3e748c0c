"""How sessions beside other plugins are run: what they start is forked, as they are."""

from __future__ import annotations

import pytest

from tests.support import interpreters


@pytest.fixture(autouse=True)
def _children_are_forked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each session a server for its children: nothing here is about their start."""
    monkeypatch.setattr(interpreters, "CHILDREN_TOO", True)
