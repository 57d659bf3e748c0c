"""The values that pass between a backend and what is checked."""

from __future__ import annotations

import pickle

import pytest

from pytest_cudafork.capture.interface.backend import (
    Capture,
    CaptureFinding,
    GraphBackend,
    GraphNode,
    Recording,
)
from pytest_cudafork.errors import CaptureFailedError, ReplayFailedError


@pytest.mark.parametrize("kind", [CaptureFailedError, ReplayFailedError])
def test_an_error_carries_its_finding(kind: type[CaptureFailedError]) -> None:
    finding = CaptureFinding("capture-failed", "it cannot be captured", where="a.py:3")
    error = kind(finding)
    assert error.finding is finding
    assert str(error) == "it cannot be captured"
    in_full = CaptureFailedError(finding, "[capture-failed] it cannot be captured")
    for one in (error, in_full):
        travelled = pickle.loads(pickle.dumps(one))
        assert (travelled.finding, str(travelled)) == (finding, str(one))


def test_a_capture_and_a_backend_have_to_be_complete() -> None:
    for interface in (Capture, GraphBackend):
        with pytest.raises(TypeError, match="abstract"):
            interface()  # type: ignore[abstract]
    assert Capture.findings == ()


def test_what_is_not_known_of_a_recording_is_none_with_a_reason() -> None:
    recording = Recording(1, None, None, "nobody looked")
    assert (recording.nodes, recording.uses, recording.why_not) == (None, None, "nobody looked")
    assert GraphNode("op", "aten::mm").where == ""
