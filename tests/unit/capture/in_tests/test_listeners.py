"""Who listens under which value of the option."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.in_tests.listeners import Watching  # noqa: E402
from pytest_cudafork.capture.interface.seen import Listener, watch_in_force  # noqa: E402


@pytest.mark.parametrize(("how", "judges"), [("check", True), ("all", True), ("audit", False)])
def test_the_recorder_comes_first_and_others_last(how: str, judges: bool) -> None:
    other = Listener()
    watching = Watching(how, other)
    assert watching.watch.listeners[0] is watching.recorder
    assert watching.watch.listeners[-1] is other
    assert (watching.judge is not None) is judges
    assert watching.take() == {}
    with watching.in_force("a test"):
        assert watch_in_force() is watching.watch
        assert watching.watch.test == "a test"
    assert watch_in_force() is None
