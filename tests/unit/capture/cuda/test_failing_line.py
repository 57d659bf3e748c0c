"""The line at which a capture fails, and how that is told."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.helpers import needs_torch

pytestmark = needs_torch


REFUSED = "CUDA error: operation not permitted when stream is capturing"


FAILED = "capture-failed"


def test_the_tracer_gives_back_what_traced_before() -> None:
    from pytest_cudafork.capture.cuda.failing_line import LineTracer

    seen: list[str] = []

    def mine(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        with LineTracer(lambda: True).running():
            pass
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("operator", "said", "words", "check"),
    [
        ("aten._local_scalar_dense.default", REFUSED, ".item()", "host-sync"),
        ("aten.nonzero.default", REFUSED, "nonzero()", "host-sync"),
        ("", "CUDA error: capturing stream has unjoined work", "not joined", FAILED),
        (
            "aten.rand.generator",
            "Attempt to increase offset for a CUDA generator",
            "registered",
            FAILED,
        ),
        ("mine.op.default", "CUDA error: no", "mine.op.default cannot be captured", FAILED),
        ("", "CUDA error: no", "this line cannot be captured", FAILED),
        ("", REFUSED, "this line waits for the GPU", "host-sync"),
    ],
)
def test_a_failure_is_explained_in_the_users_words(
    operator: str, said: str, words: str, check: str
) -> None:
    from pytest_cudafork.capture.cuda.failing_line import Clue, explain

    finding = explain(Clue("user.py:3", operator), RuntimeError(said))
    assert finding.check == check
    assert words in f"{finding.what} {finding.why}"
    assert said in finding.what
    assert finding.where == "user.py:3"
    assert finding.why
    assert finding.todo


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ("CUDA error: operation not permitted when stream is capturing", True),
        ("CUDA error: operation failed due to a previous error during capture", True),
        ("CUDA error: capturing stream has unjoined work", True),
        ("operation not permitted on an event last recorded in a capturing stream", True),
        ("Attempt to increase offset for a CUDA generator not in capture mode.", True),
        ("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.", True),
        ("CUDA out of memory", False),
        ("could not capture the screen", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_an_error_is_about_the_capture_or_not(said: str, about: bool) -> None:
    from pytest_cudafork.capture.cuda.failing_line import is_about_capture

    assert is_about_capture(RuntimeError(said)) is about
