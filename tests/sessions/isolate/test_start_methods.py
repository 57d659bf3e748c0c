"""Tests marked ``start_methods`` in whole sessions: what they run with, and what is told of it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.support.sessions import failure, outcomes, run_session

TESTS = """
import multiprocessing
import os
import sys
import unittest

import pytest

DEFAULT = multiprocessing.get_start_method(allow_none=True)
PARENT = os.getpid() if not os.environ.get("IN_PARENT") else int(os.environ["IN_PARENT"])
os.environ["IN_PARENT"] = str(PARENT)
VARIABLES = ("VLLM_WORKER_MULTIPROC_METHOD", "MULTIPROCESSING_START_METHOD")


@pytest.fixture
def started():
    process = multiprocessing.Process(target=print)
    process.start()
    process.join()
    return process


@pytest.mark.start_methods("fork", "forkserver", "spawn")
def test_matrix(request, started):
    method = request.node.callspec.params["start_method"]
    assert multiprocessing.get_start_method() == method
    assert [os.environ[name] for name in VARIABLES] == [method, method]
    assert started.exitcode == 0
    assert os.getpid() != PARENT


@pytest.mark.start_methods("fork")
def test_engine_of_its_own_mind(start_method):
    assert start_method == "fork"
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()


@pytest.mark.start_methods("fork", "spawn")
@pytest.mark.cuda_isolated(scope="module")
class TestShared:
    def test_one(self):
        multiprocessing.set_start_method("forkserver", force=True)

    def test_two(self, start_method):
        assert multiprocessing.get_start_method() == start_method


def test_nothing_is_left_of_it(start_method):
    assert multiprocessing.get_start_method(allow_none=True) == DEFAULT
    assert not any(name in os.environ for name in VARIABLES)
    assert start_method == DEFAULT or DEFAULT is None


@pytest.mark.start_methods("thread")
def test_wrong():
    pass


class TestOld(unittest.TestCase):
    @pytest.mark.start_methods("fork")
    def test_old(self):
        pass
"""


def properties(path: str) -> dict[str, list[tuple[str, str]]]:
    """Return the properties of each test in a JUnit file."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        pairs = [(one.attrib["name"], one.attrib["value"]) for one in case.iter("property")]
        found[case.attrib["name"]] = [pair for pair in pairs if pair[0].startswith("cudafork")]
    return found


@pytest.mark.parametrize("options", [(), ("--cuda-fork-isolate=none",)], ids=["isolated", "not"])
def test_a_matrix_of_start_methods(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_methods=TESTS)
    result = run_session(pytester, "-v", "--junitxml=junit.xml", *options)
    found = outcomes(result)
    isolated = "PASSED" if not options else "FAILED"  # of one assert: it is another process
    assert found == {
        "test_matrix[fork]": isolated,
        "test_matrix[forkserver]": isolated,
        "test_matrix[spawn]": isolated,
        "test_engine_of_its_own_mind[fork]": "PASSED",
        "TestShared::test_one[fork]": "PASSED",
        "TestShared::test_one[spawn]": "PASSED",
        "TestShared::test_two[fork]": "PASSED",
        "TestShared::test_two[spawn]": "PASSED",
        "test_nothing_is_left_of_it": "PASSED",
        "test_wrong": "ERROR",
        "TestOld::test_old": "ERROR",
    }
    assert "'thread' is no start method: write start_methods('fork'" in failure(
        result, "test_wrong"
    )
    assert "which pytest cannot do here" in failure(result, "TestOld.test_old")
    told = properties(str(pytester.path / "junit.xml"))
    assert told["test_matrix[spawn]"] == [("cudafork_wanted", "spawn"), ("cudafork_ran", "spawn")]
    other = told["test_engine_of_its_own_mind[fork]"]
    assert other[:2] == [("cudafork_wanted", "fork"), ("cudafork_ran", "spawn")]
    [(name, where)] = other[2:]
    assert name == "cudafork_ran_at"
    assert where.startswith("test_methods.py:")
    assert where.endswith(" by spawn")
    assert told["test_nothing_is_left_of_it"] == []
    result.stdout.fnmatch_lines(
        [
            "start methods: 1 test wanted fork and ran spawn:",
            "  test_methods.py::test_engine_of_its_own_mind[[]fork] (test_methods.py:* by spawn)",
        ]
    )


def test_what_ran_otherwise_counts_as_an_intent_that_was_missed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_methods=TESTS)
    result = run_session(pytester, "--cuda-fork-intent", "-k", "own_mind or matrix")
    result.assert_outcomes(passed=3, failed=1)
    told = failure(result, "test_engine_of_its_own_mind[fork]")
    assert "wanted fork and ran spawn: it is marked start_methods('fork'), and ran spawn: " in told


def test_the_fork_server_of_the_pytest_process_is_not_that_of_a_fork(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import multiprocessing
        import pytest

        def use():
            process = multiprocessing.get_context("forkserver").Process(target=print)
            process.start()
            process.join()
            assert process.exitcode == 0

        def test_here(): use()

        @pytest.mark.cuda_isolated(method="fork")
        def test_in_a_fork(): use()

        @pytest.mark.cuda_isolated(method="fork", fixtures="inherit")
        def test_a_body_in_a_fork(): use()

        def test_a_call_in_a_fork(run_forked): run_forked(use)

        def test_here_again(): use()
        """
    )
    result = run_session(pytester, "-v")
    assert set(outcomes(result).values()) == {"PASSED"}
    assert len(outcomes(result)) == 5
