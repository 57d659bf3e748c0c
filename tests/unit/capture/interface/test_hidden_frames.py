"""A refusal shows the user's lines alone; a fault shows where it is."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pytest_cudafork.capture.interface.backend import (
    CaptureFailedError,
    CaptureFinding,
    ReplayFailedError,
)
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.errors import GraphNotJudgedError


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
