"""A refusal shows the user's lines alone; a fault shows where it is."""

from __future__ import annotations

import traceback
from typing import NamedTuple

import pytest

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError, ReplayFailedError


class Raised(NamedTuple):
    """What pytest hands over."""

    value: BaseException


FINDING = CaptureFinding("host-sync", "no")


@pytest.mark.parametrize(
    "error", [CaptureFailedError(FINDING), ReplayFailedError(FINDING), GraphNotJudgedError("no")]
)
def test_what_is_raised_on_purpose_hides_the_frames_of_the_module(error: Exception) -> None:
    assert of_refusals(Raised(error))


def test_a_fault_hides_nothing() -> None:
    assert not of_refusals(Raised(RuntimeError("a fault")))
    assert not of_refusals(None)


def hidden(error: BaseException) -> list[bool]:
    """Return of each frame of this package whether it is left out."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [each for each in frames if each.f_globals["__name__"].startswith("pytest_cudafork.")]
    return [each.f_globals.get("__tracebackhide__") is of_refusals for each in ours]


def test_what_looks_on_and_what_replays_is_left_out_too() -> None:
    torch = pytest.importorskip("torch")
    from tests.support.captures import looking

    with looking() as look:
        with pytest.raises(CaptureFailedError) as refused:
            look.capture(lambda: torch.rand(2, generator=torch.Generator()))
        held = [torch.ones(2)]
        captured = look.capture(lambda: held[0] * 2)
        held.clear()
        with pytest.raises(ReplayFailedError) as freed:
            captured.replay()
    for error in (refused.value, freed.value):
        assert len(hidden(error)) > 2
        assert all(hidden(error))
