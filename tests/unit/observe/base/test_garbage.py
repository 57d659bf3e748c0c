"""When garbage is not collected."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from pytest_cudafork.observe.base import garbage
from pytest_cudafork.observe.base.garbage import no_collections
from pytest_cudafork.observe.base.stacks import frames_of_threads


def collect_nothing() -> None:
    """Come to where nothing is collected, which an interrupt is to keep from that."""
    with no_collections():
        pytest.fail("it was not interrupted")


@pytest.mark.parametrize("before", [True, False])
def test_no_garbage_is_collected_meanwhile_and_after_it_as_before(
    before: bool, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(gc.enable if gc.isenabled() else gc.disable)
    (gc.enable if before else gc.disable)()
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled() is before


@pytest.mark.parametrize("work", [collect_nothing, frames_of_threads])
def test_garbage_is_collected_again_where_a_signal_comes_at_once(
    work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    class Interrupted:
        isenabled, enable = staticmethod(gc.isenabled), staticmethod(gc.enable)

        @staticmethod
        def disable() -> None:
            gc.disable()
            raise KeyboardInterrupt

    request.addfinalizer(gc.enable if gc.isenabled() else gc.disable)
    gc.enable()
    monkeypatch.setattr(garbage, "gc", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert gc.isenabled()
