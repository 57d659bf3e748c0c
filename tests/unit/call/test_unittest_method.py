"""Methods of unittest in a child: what the object that runs them would hear is told by the call."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.call.isolated import isolated
from pytest_cudafork.call.unittest_method import call_telling
from tests.support.isolation import METHODS


class Case(unittest.TestCase):
    """Methods that are called below, each by the runner of unittest."""

    __test__ = False

    folder = ""

    def test_subtests(self) -> None:
        for number in range(4):
            with self.subTest("a number", number=number):
                self.assertEqual(number % 2, 0)  # noqa: PT009
        self.note("went on")

    def test_one_that_is_skipped(self) -> None:
        for number in range(2):
            with self.subTest(number=number):
                if number:
                    self.skipTest("no odd ones")
        self.note("went on")

    def test_skipped_and_failed(self) -> None:
        with self.subTest():
            self.fail("first")
        self.skipTest("and then skipped")

    def test_subtest_and_body(self) -> None:
        with self.subTest(part=1):
            raise LookupError("of the subtest")
        raise ZeroDivisionError("of the body")

    @unittest.expectedFailure
    def test_expected(self) -> None:
        with self.subTest():
            self.fail("as expected")

    def test_good(self) -> None:
        with self.subTest(good=True):
            pass

    def test_cleanups(self) -> None:
        self.addCleanup(self.note, "last")
        self.addCleanup(self.note, "first", end=",")

    def test_cleanup_fails(self) -> None:
        self.addCleanup(os.mkdir, self.folder)

    def test_exit_of_a_subtest(self) -> None:
        with self.subTest():
            sys.exit(3)

    def setUp(self) -> None:
        self.addCleanup(self.note, f";{os.getpid()}")

    def note(self, text: str, end: str = "") -> None:
        with open(f"{self.folder}/notes", "a") as file:
            file.write(f"{text}{end}")


def run(name: str, folder: Path, method: str | None) -> tuple[unittest.TestResult, list[str]]:
    """Run one method by unittest, in a child or in place."""
    members: dict[str, Any] = {"folder": str(folder), "__module__": __name__}
    if method is not None:
        members[name] = isolated(method=method, timeout=60)(getattr(Case, name))  # type: ignore[call-overload]
    case = type("Case", (Case,), members)(name)
    stream = io.StringIO()
    result = unittest.TextTestRunner(stream, verbosity=2).run(case)
    return result, (folder / "notes").read_text().split(";")


OUTCOMES = {
    "test_subtests": (1, 0, 0, "went on"),
    "test_one_that_is_skipped": (0, 0, 1, "went on"),
    "test_skipped_and_failed": (1, 0, 0, ""),
    "test_subtest_and_body": (1, 0, 0, ""),
    "test_expected": (0, 0, 0, ""),
    "test_good": (0, 0, 0, ""),
    "test_cleanups": (0, 0, 0, "first,last"),
    "test_cleanup_fails": (0, 1, 0, ""),
    "test_exit_of_a_subtest": (0, 1, 0, ""),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "fork") for name in OUTCOMES),
        *((name, method) for name in ("test_subtests", "test_cleanups") for method in METHODS[1:]),
    ],
)
def test_what_is_no_success_in_one_process_is_none_in_a_child(
    name: str, method: str, tmp_path: Path
) -> None:
    result, (noted, pid) = run(name, tmp_path, method)
    counted = len(result.failures), len(result.errors), len(result.skipped), noted
    assert counted == OUTCOMES[name]
    assert len(result.expectedFailures) == (name == "test_expected")
    assert pid == str(os.getpid())  # that of setUp runs where setUp did, once
    other = tmp_path / "plain"
    other.mkdir()
    plain, _ = run(name, other, None)
    assert plain.wasSuccessful() is result.wasSuccessful()
    assert bool(plain.skipped) >= bool(result.skipped)


def test_all_subtests_that_fail_are_named_with_their_lines(tmp_path: Path) -> None:
    result, _ = run("test_subtests", tmp_path, "fork")
    text = result.failures[0][1]
    assert "2 subtests of Case.test_subtests failed" in text
    for number in (1, 3):
        assert f"[a number] (number={number})" in text
    assert "of the subtest" in run("test_subtest_and_body", tmp_path, "fork")[0].failures[0][1]


def test_a_subtest_in_another_is_named_with_it() -> None:
    case = unittest.TestCase()

    def helper() -> None:
        with case.subTest("why", outer=1), case.subTest(inner=2):
            case.fail()

    with pytest.raises(AssertionError, match=r"\(inner=2\), in \[why\] \(outer=1\)\nTraceback"):
        call_telling(helper, "helper", case, cleans_up=True)
    assert "subTest" not in vars(case)


@pytest.mark.parametrize(("name", "cleans_up"), [("helper", True), ("runTest", False)])
def test_cleanups_of_a_helper_or_of_a_coroutine_are_left(name: str, cleans_up: bool) -> None:
    case = unittest.TestCase()

    def helper() -> str:
        case.addCleanup(pytest.fail)
        return "its result"

    assert call_telling(helper, name, case, cleans_up=cleans_up) == "its result"
    assert len(case._cleanups) == 1  # type: ignore[attr-defined]


def test_what_an_instance_has_in_place_of_a_method_is_put_back() -> None:
    case = unittest.TestCase()
    case.subTest = own = contextlib.nullcontext  # type: ignore[assignment]
    call_telling(lambda: None, "helper", case, cleans_up=True)
    assert case.subTest is own


@pytest.mark.parametrize("other", [None, 1, "text", object()])
def test_what_is_no_method_of_unittest_is_left_alone(other: object) -> None:
    assert call_telling(lambda: 3, "name", other, cleans_up=True) == 3


class Holding(unittest.TextTestResult):
    """A result that does not pickle."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


class Awaited(unittest.IsolatedAsyncioTestCase):
    """Methods of an event loop that does not travel, and a cleanup that does not."""

    __test__ = False

    def setUp(self) -> None:
        self.addCleanup(threading.Lock().acquire)
        self.number = 1

    async def test_good(self) -> None:
        await asyncio.sleep(0)
        self.assertEqual(self.number, 1)  # noqa: PT009

    async def test_subtest(self) -> None:
        with self.subTest(number=self.number):
            await asyncio.sleep(0)
            self.fail()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("name", ["test_good", "test_subtest"])
def test_a_runner_that_does_not_pickle_stays_here(name: str, method: Any) -> None:
    members = {name: isolated(method=method)(getattr(Awaited, name)), "__module__": __name__}
    case = type("Awaited", (Awaited,), members)(name)
    runner = unittest.TextTestRunner(io.StringIO(), resultclass=Holding, buffer=True)
    result = runner.run(case)
    assert not result.errors, result.errors[0][1]
    assert len(result.failures) == (name == "test_subtest")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()):
        yield
