"""Isolated tests beside tests of plugins, which run sessions in the pytest process."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import assert_no_crash, outcomes, run_session

INNER = """
from pytest_cudafork import isolated

INNER = '''
from pytest_cudafork import isolated
@isolated(method="METHOD")
def helper(): return 1
def test_helper(): helper()
@isolated(method="METHOD")
def test_inner(): assert 0
'''

def test_of_a_plugin(pytester):
    pytester.makepyfile(INNER)
    result = pytester.inline_run("-p", "pytest_cudafork.plugin")
    result.assertoutcome(passed=1, failed=1)

@isolated(method="METHOD")
def test_isolated(): print("words")

@isolated(method="METHOD")
def test_fails(): assert 0

@isolated(method="METHOD")
def helper(): return 2

def test_helper(): assert helper() == 2

def test_of_a_plugin_again(pytester): test_of_a_plugin(pytester)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_session_inside_leaves_the_outer_one_as_it_was(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(INNER.replace("METHOD", method))
    result = run_session(pytester, "-p", "pytester", "-v")
    assert_no_crash(result)
    assert {name: each.partition(" ")[0] for name, each in outcomes(result).items()} == {
        "test_of_a_plugin": "PASSED",
        "test_isolated": "PASSED",
        "test_fails": "FAILED",
        "test_helper": "PASSED",
        "test_of_a_plugin_again": "PASSED",
    }
