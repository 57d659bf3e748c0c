"""Tests of the exceptions and warnings: what they hold, what they are named, how they travel."""

from __future__ import annotations

import copy
import pickle

import pytest

import pytest_cudafork
from pytest_cudafork import errors


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (errors.ChildExit("left", 3), {"code": 3}),
        (errors.ChildExit(), {"code": None}),
        (
            errors.ChildCrashed("killed", -11, "SIGSEGV", "stack"),
            {"exitcode": -11, "signal_name": "SIGSEGV", "stacks": "stack"},
        ),
        (errors.ChildCrashed(), {"exitcode": None, "signal_name": "", "stacks": ""}),
        (errors.ChildTimeout("slow", 1.5, "stack"), {"timeout": 1.5, "stacks": "stack"}),
        (errors.RemoteTraceback("Traceback ..."), {"text": "Traceback ..."}),
    ],
    ids=repr,
)
def test_an_error_of_a_child_keeps_its_fields_and_words_between_processes(
    error: Exception, fields: dict[str, object]
) -> None:
    for travelled in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert {name: getattr(travelled, name) for name in fields} == fields
        assert str(travelled) == str(error)


def test_a_remote_traceback_says_where_it_comes_from() -> None:
    assert str(errors.RemoteTraceback("line 1")) == "in the child process:\n\nline 1"


def test_an_error_of_a_graph_has_its_findings_and_fails_a_test_as_an_assertion_does() -> None:
    finding = object()
    error = errors.CapturePairError("words", (finding,))  # type: ignore[arg-type]
    assert error.findings == (finding,)
    assert isinstance(error, errors.GraphCaptureError)
    assert isinstance(error, AssertionError)


def test_what_is_no_verdict_on_a_graph_is_not_taken_for_one() -> None:
    for error in (errors.GraphUsageError, errors.GraphNotJudgedError):
        assert not issubclass(error, AssertionError)
        assert not issubclass(error, errors.GraphCaptureError)
    assert issubclass(errors.GraphUsageError, ValueError)
    assert errors.GraphNotJudgedError("words").findings == ()


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "RemoteTraceback"])
def test_a_filter_on_the_public_name_finds_the_class(name: str) -> None:
    public = getattr(pytest_cudafork, name)
    assert public is getattr(errors, name)
    assert f"{public.__module__}.{public.__qualname__}" == f"pytest_cudafork.{name}"


def test_errors_of_children_are_one_family_and_warnings_are_user_warnings() -> None:
    for kind in (errors.ChildExit, errors.ChildCrashed, errors.ChildTimeout):
        assert issubclass(kind, errors.ChildError)
    assert issubclass(errors.CudaForkWarning, UserWarning)
