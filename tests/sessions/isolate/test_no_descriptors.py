"""A pytest process that has no descriptor left to look for what a test has started."""

from __future__ import annotations

import pytest

CONFTEST = """
import errno
import pytest
from pytest_cudafork.process.descendants import leftovers

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    former = leftovers.marked_processes
    def none_left(cookies):
        raise OSError(errno.EMFILE, "Too many open files", "/proc")
    leftovers.marked_processes = none_left
    try:
        return (yield)
    finally:
        leftovers.marked_processes = former
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_session_goes_on_and_tells(pytester: pytest.Pytester, method: str) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import os

        def test_passes(): pass
        def test_dies(): os._exit(7)
        def test_fails(): assert 0
        def test_passes_too(): pass
        """
    )
    result = pytester.runpytest_subprocess(f"--cuda-fork-isolate={method}")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (2, 2)
    told = "*RuntimeWarning: processes that a test has left could not be looked for: *"
    result.stdout.fnmatch_lines([told])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
