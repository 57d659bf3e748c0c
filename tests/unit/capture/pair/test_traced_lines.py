"""The line that set something is found by a trace, which leaves nothing behind."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def test_the_trace_function_is_as_before() -> None:
    def mine(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        with pytest.raises(CapturePairError):
            Runner(keep=lambda warmup: "one").check()
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)
