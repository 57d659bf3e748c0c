"""A test that runs again is checked again."""

from __future__ import annotations

import pytest

from tests.support.sessions import check, counts, line_of, module

# As pytest-rerunfailures does: the reports of a run that failed are not shown.
RUNS_AGAIN = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for last in (False, False, True):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if last or not any(report.failed for report in reports):
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            break
        item._initrequest()
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""

CASES = """
import functools

def test_touches():
    touch()  # culprit

@functools.cache
def device():
    touch()

def test_touches_in_the_first_run_alone():
    device()

runs = []

@pytest.mark.cuda_fork_ok(reason="the child does nothing but in the first run")
def test_poisoned_in_the_first_run_alone():
    child(touch if not runs else lambda: None)
    runs.append(1)

def test_innocent():
    pass
"""


def test_a_touch_fails_every_run_of_its_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(RUNS_AGAIN)
    path = pytester.makepyfile(module(CASES))
    result = check(pytester, "touch")
    result.assert_outcomes(failed=2, passed=2)
    text = result.stdout.str()
    assert text.count("what to do:") == 2
    assert f"{path.name}:{line_of(path, '# culprit')}" in text
    assert "That was in an earlier run of this test." in text
    # Each run of the first test touches; the second one remembers.
    assert counts(result)["touches"] == 3 + 1 + 1
