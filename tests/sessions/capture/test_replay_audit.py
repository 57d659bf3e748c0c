"""``--cuda-fork-captures=audit``: tests of replays that cannot fail, listed and not failed."""

from __future__ import annotations

import importlib.util
import re
from xml.etree import ElementTree

import pytest

from tests.support.documents import read_document
from tests.support.sessions import assert_no_crash, needs_torch, outcomes, run_session

TESTS = """
import pytest, torch

SET_UPS = []

class Step:
    def __init__(self):
        SET_UPS.append(1)
        self.x, self.weight = torch.ones(2, 3), torch.full((3, 3), 2.0)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.x @ self.weight

@pytest.fixture(scope="module")
def step():
    return Step()

def test_looks_at_the_shape(step):
    step.graph.replay()
    assert step.out.shape == (2, 3)

def test_looks_for_nan(step):
    step.graph.replay()
    assert not step.out.isnan().any()

def test_changes_and_compares(step, record_property, tmp_path):
    record_property("mine", "kept")
    print("said once")
    step.x.fill_(4)
    step.graph.replay()
    assert torch.equal(step.out, step.x @ step.weight)

@pytest.mark.isolated
def test_in_a_process_of_its_own(step):
    step.graph.replay()

def test_compares_until_it_fits(step):
    step.out.zero_()
    while not torch.equal(step.out, step.x @ step.weight):
        step.graph.replay()

def test_fails(step):
    step.graph.replay()
    assert step.out.shape == (1, 1)

@pytest.mark.check_captures(False)
def test_is_left_alone(step):
    step.graph.replay()

def test_nothing_here_was_run_again(step):
    assert len(SET_UPS) == 1
    assert step.x.tolist() == [[4.0] * 3] * 2
"""
EXPECTED = {
    "test_looks_at_the_shape": "PASSED",
    "test_looks_for_nan": "PASSED",
    "test_changes_and_compares": "PASSED",
    "test_in_a_process_of_its_own": "PASSED",
    "test_compares_until_it_fits": "PASSED",
    "test_fails": "FAILED",
    "test_is_left_alone": "PASSED",
    "test_nothing_here_was_run_again": "PASSED",
}
NOTHING = {"test_looks_at_the_shape", "test_looks_for_nan", "test_in_a_process_of_its_own"}


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("workers", [0, 1])
def test_tests_that_cannot_fail_are_listed_and_outcomes_are_as_ever(
    pytester: pytest.Pytester, workers: int
) -> None:
    if workers and importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed")
    pytester.makepyfile(test_them=TESTS)
    spread = ("-p", "xdist", f"-n{workers}") if workers else ()
    result = run_session(
        pytester,
        *("-v", "--cuda-fork-graphs=software", "--cuda-fork-captures=audit", *spread),
        *("--junitxml=report.xml", "-o", "junit_family=xunit2", "--cuda-fork-json=report.json"),
    )
    assert_no_crash(result)
    said = read_document(pytester.path / "report.json", "session")["replay_audit"]
    assert (said["audited"], said["not_judged"]) == (5, [])
    assert {each["test"].partition("::")[2] for each in said["cannot_fail"]} == NOTHING
    if not workers:
        assert outcomes(result) == EXPECTED
    result.assert_outcomes(passed=7, failed=1)
    text = result.stdout.str()
    assert "5 tests that replay a graph and passed: 3 cannot fail, 0 not judged" in text
    assert set(re.findall(r"^test_them.py::(\w+) checks nothing: ", text, re.M)) == NOTHING
    assert "what to do: compare what the replay leaves" in text

    cases = ElementTree.parse(pytester.path / "report.xml").getroot().iter("testcase")
    told = {
        str(case.get("name")): [
            (one.get("name"), one.get("value")) for one in case.iter("property")
        ]
        for case in cases
    }
    assert told.keys() == EXPECTED.keys()  # one of each, whatever ran again
    assert told["test_changes_and_compares"] == [
        ("mine", "kept"),
        ("cudafork_replay_audit", "notices"),
    ]
    assert told["test_fails"] == told["test_is_left_alone"] == []
    for name in NOTHING:
        [(_, value)] = told[name]
        assert str(value).startswith("checks nothing: ")


PLAIN = """
import pytest, torch

def replayed():
    x = torch.ones(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = x + 1
    x.fill_(3)
    graph.replay()
    return out

def test_notices():
    assert replayed().tolist() == [4, 4]

def test_checks_nothing():
    replayed()

@pytest.mark.isolated
def test_checks_nothing_elsewhere():
    replayed()

def test_notices_in_a_child(run_forked):
    assert run_forked(lambda: replayed().tolist()) == [4, 4]

def test_checks_nothing_in_a_child(run_forked):
    run_forked(lambda: len(replayed()))
"""


@pytest.mark.slow
@needs_torch
def test_phases_that_are_told_by_their_times_alone_are_heard(pytester: pytest.Pytester) -> None:
    # a report that says more, as with a JUnit file, travels whole
    pytester.makepyfile(test_them=PLAIN)
    result = run_session(pytester, "--cuda-fork-graphs=software", "--cuda-fork-captures=audit")
    assert_no_crash(result)
    result.assert_outcomes(passed=5)
    text = result.stdout.str()
    assert "5 tests that replay a graph and passed: 3 cannot fail, 0 not judged" in text
    assert set(re.findall(r"^test_them.py::(\w+) checks nothing: ", text, re.M)) == {
        *("test_checks_nothing", "test_checks_nothing_elsewhere", "test_checks_nothing_in_a_child")
    }
