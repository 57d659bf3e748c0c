"""The values that pass between a backend and what is checked."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pytest_cudafork.capture.interface.backend import (
    Capture,
    CaptureFinding,
    GraphBackend,
    GraphNode,
    Recording,
    Region,
    describe,
    extent,
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


class Tensor:
    """What is asked of a tensor: two rows of three, four elements apart, from the third one on."""

    dtype, shape = "torch.float32", (2, 3)

    def stride(self) -> tuple[int, int]:
        return 4, 1

    def storage_offset(self) -> int:
        return 2

    def element_size(self) -> int:
        return 4


def test_a_region_is_what_a_tensor_covers_from_its_first_byte_to_its_last() -> None:
    region = Region.under(Tensor(), 7, 1000, lambda: None)
    assert (region.first, region.end) == (1000 + 2 * 4, 1000 + (2 + 7) * 4)
    assert region.tensor == describe(Tensor()) == "float32[2, 3]"
    assert (extent((2, 0), (4, 1)), extent((), ())) == (0, 1)


@pytest.mark.parametrize(("reads", "writes"), [(True, False), (False, True), (True, True)])
def test_a_region_is_noted_where_it_is_read_or_written(reads: bool, writes: bool) -> None:
    known: Any = ([], [])
    region = Region.under(Tensor(), 7, 0, lambda: None)
    region.note(known, reads=reads, writes=writes)
    assert known == ([region] * reads, [region] * writes)


def test_regions_overlap_where_they_cover_the_same_byte() -> None:
    def region(first: int, end: int) -> Region:
        return Region(7, 1000, first, end, "float32[4]", lambda: None)

    assert region(1000, 1008).overlaps(region(1004, 1012))
    assert not region(1000, 1008).overlaps(region(1008, 1012))
    assert not region(1000, 1000).overlaps(region(1000, 1008)), "it covers nothing"
