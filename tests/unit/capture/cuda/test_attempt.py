"""One capture on a stand-in for the driver: its result, and where it breaks."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


BODIES = {
    "an operator": "y = x + 1\nspoil_op(x)  # here\nreturn y",
    "a call between operators": "y = touch(x)\nspoil()  # here\nreturn touch(y)",
    "a call after the last operator": "y = touch(x)\nspoil()  # here\nreturn y",
    "a call before the first": "spoil()  # here\nreturn touch(x)",
    "a call that raises": "y = touch(x)\nspoil_loudly()  # here\nreturn touch(y)",
    "a call in a helper": (
        "def helper():\n    a = 1\n    spoil()  # here\n    return a\nhelper()\nreturn touch(x)"
    ),
    "a swallowed error": (
        "try:\n    spoil_op(x)  # here\nexcept RuntimeError:\n    pass\nreturn x + 1"
    ),
    "a swallowed error and another": (
        "try:\n    spoil_op(x)  # here\nexcept RuntimeError:\n    pass\nraise KeyError('mine')"
    ),
}


REFUSED = "CUDA error: operation not permitted when stream is capturing"


_count = itertools.count()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for the driver; afterwards nothing may be left begun."""
    from pytest_cudafork.capture.cuda.libcuda import CaptureStatus
    from tests.support.capture_cuda import pretend

    made = pretend(monkeypatch)
    before = gc.isenabled(), sys.gettrace()
    yield made
    assert made.state is CaptureStatus.NONE
    assert made.pools == []
    assert (gc.isenabled(), sys.gettrace()) == before


@pytest.fixture
def attempt(driver: Any) -> Any:
    from pytest_cudafork.capture.cuda.attempt import Attempt
    from tests.support.capture_cuda import FakeStream

    return Attempt(driver, FakeStream(), (1, 2), "global", ())


def user_function(tmp_path: Path, body: str, driver: Any) -> tuple[Any, str]:
    """A function of a file of its own, and the place that is to be named."""
    import torch

    from pytest_cudafork.capture.cuda.libcuda import CaptureStatus

    def spoil_op(x: torch.Tensor) -> torch.Tensor:
        driver.spoil()
        raise RuntimeError(REFUSED)

    def touch_op(x: torch.Tensor) -> torch.Tensor:
        driver.launch()
        return x + 1

    number = next(_count)
    ops = [
        torch.library.custom_op(
            f"cudafork_test::{op.__name__}{number}",
            op,
            mutates_args=(),
            schema="(Tensor x) -> Tensor",
        )
        for op in (spoil_op, touch_op)
    ]

    def spoil_loudly() -> None:
        spoil_op(torch.ones(1))

    source = f"def fn():\n{textwrap.indent(body, '    ')}\n"
    path = tmp_path / "user_code.py"
    path.write_text(source, encoding="utf-8")
    module = types.ModuleType("user_code")
    # A call into C: no line of Python lies within it.
    spoil = functools.partial(setattr, driver, "state", CaptureStatus.INVALIDATED)
    module.__dict__.update(
        spoil_op=ops[0],
        touch=ops[1],
        spoil=spoil,
        spoil_loudly=spoil_loudly,
        x=torch.ones(3),
    )
    exec(compile(source, str(path), "exec"), module.__dict__)
    lines = source.splitlines()
    line = next((n for n, text in enumerate(lines, 1) if text.endswith("# here")), 0)
    return module.fn, f"user_code.py:{line}"


@pytest.mark.slow
@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
def test_the_line_that_breaks_a_capture_is_found(
    attempt: Any, driver: Any, tmp_path: Path, body: str
) -> None:
    from pytest_cudafork.capture.cuda.attempt import Failed

    fn, place = user_function(tmp_path, body, driver)
    failed = attempt.run(fn)
    assert isinstance(failed, Failed)
    where = failed.clue.where or attempt.find_line(fn)
    if "loudly" in body:  # the line that raises is in this file, which is user code too
        assert Path(__file__).name in where
    else:
        assert where.endswith(place)


def test_a_second_run_happens_only_where_the_first_does_not_tell(
    attempt: Any, driver: Any, tmp_path: Path
) -> None:
    fn, _ = user_function(tmp_path, BODIES["an operator"], driver)
    assert attempt.run(fn).clue.where
    assert driver.captures == 1


def test_a_line_that_no_python_ran_is_bracketed(attempt: Any, driver: Any, tmp_path: Path) -> None:
    from pytest_cudafork.capture.cuda.failing_line import explain

    calls: list[int] = []
    fn, _ = user_function(tmp_path, "y = touch(x)\nonce()\nreturn touch(y)", driver)

    def once() -> None:
        calls.append(1)
        if len(calls) == 1:
            driver.spoil()

    fn.__globals__["once"] = once
    failed = attempt.run(fn)
    assert failed.clue.where == ""
    assert attempt.find_line(fn) == ""
    finding = explain(failed.clue, failed.error)
    assert "user_code.py:2" in finding.what
    assert "user_code.py:4" in finding.what


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, RuntimeError])
def test_an_error_of_the_users_own_passes(
    attempt: Any, tmp_path: Path, error: type[BaseException]
) -> None:
    def fn() -> None:
        raise error("mine")

    with pytest.raises(error, match="mine"):
        attempt.run(fn)


def test_a_capture_that_succeeds_has_its_result_and_its_uses(attempt: Any, driver: Any) -> None:
    import torch

    x = torch.ones(3)
    captured = attempt.run(lambda: x + 1)
    assert captured.recording.result.tolist() == [2.0] * 3
    assert {use.tensor for use in captured.recording.uses} == {"float32[3]"}
    assert captured.findings == []
