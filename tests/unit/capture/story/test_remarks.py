"""Remarks of checks that passed are kept until the report is made, each once."""

from __future__ import annotations

from pytest_cudafork.capture.story.remarks import remark, take


def test_remarks_are_taken_once() -> None:
    take()
    remark([], {})
    assert take() == []
    remark(["a note"], {"not-shared": "no inputs"})
    remark(["a note"], {})
    assert take() == ["a note", "not checked: not-shared: no inputs"]
    assert take() == []
