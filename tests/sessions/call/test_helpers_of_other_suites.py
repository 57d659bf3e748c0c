"""The page for those who come from vLLM's helpers: its few lines stand in for them."""

from __future__ import annotations

import shutil

import pytest

from tests.support.native import ROOT, needs_libraries
from tests.support.sessions import run_session

SUITE = """
import os
import pytest
from vllm_utils import (
    create_new_process_for_each_test,
    fork_new_process_for_each_test,
    multi_gpu_test,
    spawn_new_process_for_each_test,
    wait_for_gpu_memory_to_clear,
)

HERE = os.getenv("PYTEST_PROCESS")

@fork_new_process_for_each_test
def test_fork_skips():
    assert str(os.getppid()) == HERE
    pytest.skip("in the child")

@spawn_new_process_for_each_test
@pytest.mark.parametrize("x", [1, 2])
def test_spawn(x, tmp_path):
    assert str(os.getpid()) != HERE and x != 2

@create_new_process_for_each_test()
def test_auto_ends_early():
    os._exit(0)

@create_new_process_for_each_test("spawn")
def test_named():
    assert str(os.getpid()) != HERE

@multi_gpu_test(num_gpus=2)
def test_gpus():
    assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    wait_for_gpu_memory_to_clear(devices=[0, 1], threshold_bytes=2 * 2**30, timeout_s=60)
    with pytest.raises(ValueError, match="names no GPU"):
        wait_for_gpu_memory_to_clear(devices=[2], threshold_ratio=0.1, stable_duration_s=1)
"""
CONFTEST = """
import os
def pytest_configure(config):
    config.addinivalue_line("markers", "distributed(num_gpus): as vLLM has it")
    os.environ.setdefault("PYTEST_PROCESS", str(os.getpid()))
"""


@needs_libraries
def test_a_suite_that_uses_the_names_has_the_right_outcomes(pytester: pytest.Pytester) -> None:
    shutil.copy(ROOT / "docs" / "examples" / "come_from" / "vllm_utils.py", pytester.path)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    face = ("--cuda-fork-check=poison", "--cuda-fork-device=phantom:sm_90x2")
    result = run_session(pytester, *face, "-rA")
    result.assert_outcomes(passed=3, failed=2, skipped=1)
    result.stdout.fnmatch_lines(
        ["PASSED *::test_spawn[[]1[]]", "PASSED *::test_named", "PASSED *::test_gpus"]
    )
    # Arguments of marks in the option came with pytest 8.3.
    chosen = "distributed(num_gpus=2)" if pytest.version_tuple >= (8, 3) else "distributed"
    only = run_session(pytester, *face, "-m", chosen)
    only.assert_outcomes(passed=1, deselected=5)
