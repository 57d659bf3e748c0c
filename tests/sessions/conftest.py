"""How sessions under test are run: what they start is forked, as they are."""

from __future__ import annotations

import pytest

from tests.support import interpreters


@pytest.fixture(autouse=True)
def _children_are_forked_too(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each session a server for its children, where nothing is about what those are."""
    if request.node.get_closest_marker("fresh_children") is None:
        monkeypatch.setattr(interpreters, "CHILDREN_TOO", True)
