"""Remarks of checks that passed are kept until the report is made, each once."""

from __future__ import annotations

import contextvars
import subprocess
import sys

import pytest

from pytest_cudafork.capture.story.remarks import UntilReport, remark, take


def test_remarks_are_taken_once() -> None:
    take()
    remark([], {})
    assert take() == []
    remark(["a note"], {"not-shared": "no inputs"})
    remark(["a note"], {})
    assert take() == ["a note", "not checked: not-shared: no inputs"]
    assert take() == []


def test_values_are_taken_once_in_their_order() -> None:
    waiting: UntilReport[int] = UntilReport("some")
    waiting.add()
    assert waiting.take() == ()
    waiting.add(1, 2)
    waiting.add(3)
    assert waiting.take() == (1, 2, 3)
    assert waiting.take() == ()


def test_each_context_has_its_own() -> None:
    waiting: UntilReport[int] = UntilReport("some")
    waiting.add(1)
    contextvars.copy_context().run(lambda: waiting.add(2))
    assert waiting.take() == (1,)


def test_outside_pytest_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: UntilReport[int] = UntilReport("some")
    monkeypatch.delitem(sys.modules, "pytest_cudafork.plugin")
    waiting.add(1)
    assert waiting.take() == ()


def test_a_program_has_not_loaded_the_module_that_makes_reports() -> None:
    program = "import sys, pytest_cudafork; print('pytest_cudafork.plugin' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
