"""Tests of what is told of a sick GPU."""

from __future__ import annotations

import pytest

from pytest_cudafork.health import words

BROKEN = (
    "the CUDA context of GPU 0 is broken: CUDA_ERROR_ASSERT (710): device-side assert triggered"
)


def story(found: str = BROKEN, **changes: object) -> words.Story:
    """A story of the pytest process."""
    first = words.Story(found, "call", "t.py::b", "t.py::a", 12, isolated=False, recover=False)
    return first._replace(**changes)  # type: ignore[arg-type]


def test_it_names_the_last_healthy_and_the_first_sick_test_and_what_to_do() -> None:
    text = story(log="one\ntwo", dump="/x/core", dump_asked=True).text
    assert text.startswith(f"{BROKEN} (found after call)\nlast healthy: t.py::a\n")
    for part in (
        "first sick:   t.py::b\n",
        "Process 12 cannot be used any more",
        "--cuda-fork-health=recover",
        "CUDA_LAUNCH_BLOCKING=1",
        "    one\n    two\n",
        "GPU core dump: /x/core",
    ):
        assert part in text
    assert "CUDA_ENABLE_COREDUMP" not in text
    assert "CUDA_ENABLE_COREDUMP" in story().text
    assert "first test of this process" in story(last_healthy="").text


@pytest.mark.parametrize(
    ("isolated", "recover", "part"),
    [
        (True, True, "the next test gets another"),
        (False, True, "run in a fresh one"),
        (False, False, "are not run"),
    ],
)
def test_it_says_what_becomes_of_the_tests_after_it(
    isolated: bool, recover: bool, part: str
) -> None:
    assert part in story(isolated=isolated, recover=recover).text


def test_each_finding_has_its_clause_and_its_advice() -> None:
    lost, kept = f"{words.LEFT_IN_CAPTURE}: it says so", f"{words.KEPT_POOL}: 20 MiB"
    clauses = [words.what_is_broken(one) for one in (BROKEN, words.OPEN_CAPTURE, lost, kept)]
    assert clauses == [
        "the CUDA context is broken",
        "a CUDA graph capture is open",
        "torch's allocator is in a lost CUDA graph capture",
        "memory is lost to a failed CUDA graph capture",
    ]
    assert "End the capture" in story(words.OPEN_CAPTURE).text
    for found in (lost, kept):
        assert "caught the error" in story(found).text
        assert "cuda_isolated" in story(found).text


def test_what_travels_is_plain() -> None:
    assert story().plain() == {
        "found": BROKEN,
        "test": "t.py::b",
        "last_healthy": "t.py::a",
        "pid": 12,
        "isolated": False,
        "recover": False,
    }
