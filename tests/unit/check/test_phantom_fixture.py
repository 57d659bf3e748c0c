"""The switch of the fixture ``phantom_cuda``: GPUs for one test, and as before after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import phantom_fixture
from pytest_cudafork.check.phantom_fixture import PhantomCuda, phantom_for
from pytest_cudafork.observe.driver.native_libs import NativeUnavailable
from pytest_cudafork.observe.driver.phantom import PhantomError
from pytest_cudafork.observe.handed_on import WatchSettings

OUTER = WatchSettings("/tmp/ledger", "absent", "touch", ("a",))


class Native:
    """The library: its state, and what it was set to."""

    def __init__(self) -> None:
        self.now = 1

    def state(self) -> int:
        """Return the state."""
        return self.now

    def reset(self, state: int = 0) -> None:
        """Set it."""
        self.now = state


class Watches:
    """Watches that begin and end."""

    def __init__(self) -> None:
        self.native = Native()
        self.error: Exception | None = None
        self.running: list[WatchSettings] = []

    def make(self, settings: WatchSettings, owner: str) -> Any:
        """Return a watch."""
        assert owner == str(os.getpid())
        return SimpleNamespace(
            begin=lambda: self.running.append(settings), end=lambda: self.running.remove(settings)
        )

    def install(self, face: str) -> Any:
        """Install the phantom."""
        if self.error is not None:
            raise self.error
        return SimpleNamespace(native=self.native, undo=lambda: None)


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watches]:
    """No watch begins in truth, and no library is loaded."""
    made = Watches()
    monkeypatch.setattr(phantom_fixture, "Watch", made.make)
    monkeypatch.setattr(phantom_fixture, "install_phantom", made.install)
    yield made
    assert made.running == []


def session(outer: Any = None) -> Any:
    """Return a session with a watch, or without."""
    return SimpleNamespace(watch=outer)


def test_one_gpu_is_shown_for_one_test(watches: Watches) -> None:
    fixture = phantom_for(session())
    next(fixture)
    (shown,) = watches.running
    assert (shown.device, shown.level, shown.ledger) == ("sm_90", "poison", os.devnull)
    assert watches.native.now == 0
    with pytest.raises(StopIteration):
        next(fixture)
    assert watches.native.now == 1


def test_in_a_checked_session_its_own_rules_hold(watches: Watches) -> None:
    outer: Any = SimpleNamespace(observer=SimpleNamespace(settings=OUTER))
    phantom = PhantomCuda(outer)
    phantom("sm_100x8")
    assert watches.running == [OUTER._replace(device="sm_100x8")]
    phantom("sm_90")
    assert watches.running == [OUTER._replace(device="sm_90")]
    phantom.hide()
    phantom.hide()


def test_a_wrong_face_changes_nothing(watches: Watches) -> None:
    phantom = PhantomCuda(None)
    phantom()
    with pytest.raises(ValueError, match="is not a face"):
        phantom("gpu")
    assert len(watches.running) == 1
    phantom.hide()


@pytest.mark.parametrize("error", [PhantomError("a real one"), NativeUnavailable("not built")])
def test_a_test_is_skipped_where_the_phantom_cannot_be_had(
    watches: Watches, error: Exception
) -> None:
    watches.error = error
    with pytest.raises(pytest.skip.Exception, match=f"phantom_cuda: {error}"):
        next(phantom_for(session()))


def test_a_test_that_fails_has_it_undone(watches: Watches) -> None:
    fixture: Any = phantom_for(session())
    next(fixture)
    with pytest.raises(RuntimeError, match="the test"):
        fixture.throw(RuntimeError("the test"))
    assert watches.running == []
