"""The fixture ``run_script`` in whole sessions: in this process, isolated, and when it fails."""

from __future__ import annotations

import pytest

from tests.support.isolation import is_gone
from tests.support.sessions import failure, outcomes, run_session

SCRIPT = """
import ctypes
import os


def fork_after_a_touch():
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    os.fork()


fork_after_a_touch()
"""
TESTS = """
import ctypes

import pytest
from pytest_cudafork import CudaForkError, ScriptTimeout, Verdict


def test_the_fork_fails_this_test(run_script):
    run_script("post.py")


def test_the_fork_was_expected(run_script):
    with pytest.raises(CudaForkError, match=r"fork refused at post.py:7: .* at post.py:6"):
        run_script("post.py")


def test_the_result_can_be_had(run_script):
    result = run_script("post.py", allow_findings=True)
    assert result.exitcode == 1
    assert [fork.place for fork in result.forks] == ["post.py:7"]


@pytest.mark.cuda_isolated(method="spawn", timeout=600)
def test_in_an_isolated_test_the_parent_has_touched(run_script):
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    result = run_script("json.tool", stdin="{}").check()
    assert result.parent.verdict is Verdict.INITIALIZED
    assert result.stdout == "{}\\n"
    assert result.touches == ()


@pytest.mark.cuda_isolated(timeout=300)
def test_a_script_ends_with_the_test_whose_time_is_up(run_script):
    run_script("hangs.py", timeout=None)
"""
HANGS = """
import os
import subprocess
import sys
import time

command = [sys.executable, "-S", "-c", "import time; time.sleep(10_000)"]
child = subprocess.Popen(command, start_new_session=True)
with open("part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("part", "pid")
time.sleep(10_000)
"""
CONFTEST = """
import os
from pytest_cudafork.process import supervision

class LeapingTime:
    # The time of the test that hangs is up when its script does.
    def __init__(self, real, owner):
        self._real, self._owner = real, owner

    def __getattr__(self, name):
        return getattr(self._real, name)

    def monotonic(self):
        return self._real.monotonic() + (301 if self.leaped else 0)

    leaped = False

    def wait(self, supervisor, seconds):
        # not before it is waited for, or its limit would begin after the leap
        if os.getpid() == self._owner and os.path.exists("pid"):
            self.leaped = True
        return wait(supervisor, 0.05 if seconds is None else min(seconds, 0.05))

clock = LeapingTime(supervision.time, os.getpid())
supervision.time, wait = clock, supervision.Supervisor._wait
supervision.Supervisor._wait = lambda self, seconds: clock.wait(self, seconds)
"""


def test_scripts_in_a_session(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makefile(".py", post=SCRIPT, hangs=HANGS, test_scripts=TESTS)
    result = run_session(pytester, "-v", "--cuda-fork-check", "--cuda-fork-device=phantom")
    assert outcomes(result) == {
        "test_the_fork_fails_this_test": "FAILED",
        "test_the_fork_was_expected": "PASSED",
        "test_the_result_can_be_had": "PASSED",
        "test_in_an_isolated_test_the_parent_has_touched": "PASSED",
        "test_a_script_ends_with_the_test_whose_time_is_up": "FAILED",
    }
    assert all(is_gone(int(pid)) for pid in (pytester.path / "pid").read_text().split())
    told = failure(result, "test_the_fork_fails_this_test")
    assert "fork refused at post.py:7: CUDA was initialized at post.py:6" in told
    assert "That was in" in told
    assert "post.py: exited with status 1" in told
