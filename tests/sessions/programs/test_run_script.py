"""The fixture ``run_script`` in whole sessions: in this process, isolated, and when it fails."""

from __future__ import annotations

import pytest

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
import os
import time

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


@pytest.mark.cuda_isolated(method="spawn", timeout=120)
def test_in_an_isolated_test_the_parent_has_touched(run_script):
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    result = run_script("json.tool", stdin="{}").check()
    assert result.parent.verdict is Verdict.INITIALIZED
    assert result.stdout == "{}\\n"
    assert result.touches == ()


@pytest.mark.cuda_isolated(timeout=3)
def test_a_script_ends_with_the_test_whose_time_is_up(run_script):
    with open("hangs.py", "w") as file:
        file.write("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(1000)")
    run_script("hangs.py")


def test_it_is_gone():
    pid = int(open("pid").read())
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still there")
"""


def test_scripts_in_a_session(pytester: pytest.Pytester) -> None:
    pytester.makefile(".py", post=SCRIPT, test_scripts=TESTS)
    result = run_session(pytester, "-v", "--cuda-fork-check", "--cuda-fork-device=phantom")
    assert outcomes(result) == {
        "test_the_fork_fails_this_test": "FAILED",
        "test_the_fork_was_expected": "PASSED",
        "test_the_result_can_be_had": "PASSED",
        "test_in_an_isolated_test_the_parent_has_touched": "PASSED",
        "test_a_script_ends_with_the_test_whose_time_is_up": "FAILED",
        "test_it_is_gone": "PASSED",
    }
    told = failure(result, "test_the_fork_fails_this_test")
    assert "fork refused at post.py:7: CUDA was initialized at post.py:6" in told
    assert "That was in" in told
    assert "post.py: exited with status 1" in told
