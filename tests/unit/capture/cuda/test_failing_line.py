"""The line at which a capture fails, and how that is told."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.sessions import needs_torch

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


def test_an_error_says_whether_the_capture_was_broken_before() -> None:
    from pytest_cudafork.capture.cuda.failing_line import is_late, raising_line

    assert is_late(None)
    assert is_late(RuntimeError("failed due to a previous error during capture"))
    assert not is_late(RuntimeError("no"))
    assert raising_line(None) == ""
    with pytest.raises(KeyError) as caught:
        dict[str, int]()["x"]
    assert raising_line(caught.value).startswith(__file__)


@pytest.mark.parametrize(
    ("between", "words", "where"),
    [
        (("", ""), "by a call that no line of this thread's Python made", ""),
        (("/a.py:1", "/a.py:3"), "after /a.py:1 and before /a.py:3", "/a.py:3"),
        (("", "/a.py:3"), "between its start and before /a.py:3", "/a.py:3"),
        (("/a.py:1", ""), "after /a.py:1 and its end", "/a.py:1"),
    ],
)
def test_a_failure_without_a_line_is_bracketed(
    between: tuple[str, str], words: str, where: str
) -> None:
    from pytest_cudafork.capture.cuda.failing_line import Clue, explain

    found = explain(Clue("", between=between), None)
    assert words in found.what
    assert "the stream's capture was invalidated" in found.what
    assert found.where == where


def test_an_error_without_words_is_named_by_its_type() -> None:
    from pytest_cudafork.capture.cuda.failing_line import Clue, explain

    assert "(RuntimeError)" in explain(Clue("a.py:1"), RuntimeError()).what


class Code:
    """Code that is one line."""

    co_name = "fn"

    def __init__(self, line: int, file: str) -> None:
        self.co_filename, self.co_firstlineno = file, line

    def co_lines(self) -> list[tuple[int, int, int]]:
        """As of Python: first instruction, the one after the last, line."""
        return [(0, 2, self.co_firstlineno)]


class Frame:
    """A frame of a function of the user's, at a line."""

    def __init__(self, line: int, back: Any = None, file: str = __file__) -> None:
        self.f_lineno, self.f_back, self.f_lasti = line, back, 0
        self.f_code = Code(line, file)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trace functions that are set: called by hand, as a debugger may be at work here."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "settrace", seen.append)
    return seen


def test_the_line_after_which_the_capture_no_longer_holds(traces: list[Any]) -> None:
    from pytest_cudafork.capture.cuda.failing_line import LineTracer

    holds = [True]
    tracer = LineTracer(lambda: holds[0])
    outer = Frame(10)
    with tracer.running():
        trace = traces[0]
        assert trace(Frame(1, file=pytest.__file__), "call", None) is None
        for line, event in ((20, "call"), (21, "line"), (22, "return")):
            assert trace(Frame(line, outer), event, None) is trace
        holds[0] = False
        trace(Frame(11), "line", None)
        assert trace(Frame(12), "line", None) is None, "it is found"
    assert tracer.where == f"{__file__}:10"


@pytest.mark.parametrize("first", [True, False])
def test_a_capture_that_breaks_at_the_first_line_or_the_last(
    first: bool, traces: list[Any]
) -> None:
    from pytest_cudafork.capture.cuda.failing_line import LineTracer

    holds = [not first]
    tracer = LineTracer(lambda: holds[0])
    with tracer.running():
        traces[0](Frame(5), "line", None)
        holds[0] = False
    assert tracer.where == f"{__file__}:5"
