"""Suites whose own markers are read as ours."""

from __future__ import annotations

import pytest

from tests.support.sessions import assert_no_crash, run_session

INI = """
[pytest]
addopts = --strict-markers
markers =
    gpu_1: theirs
    gpu_2: theirs
    distributed(num_gpus): theirs
    alone: theirs
    world_size(n): theirs
    profiled_vram_gib(x): theirs
cuda_fork_marker_map =
    distributed(num_gpus=n) = gpus(n)
    gpu_{n} = gpus(n)
    world_size(n) = distributed(num_gpus=n)
    profiled_vram_gib(x) = gpus(1, memory="{x}GiB", share=True)
    alone = cuda_isolated(method="spawn")
"""
TESTS = """
import os
import pytest

HERE = os.getppid()
SEEN = os.environ.get("CUDA_VISIBLE_DEVICES", "all")

@pytest.mark.gpu_1
def test_one():
    assert os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1")

@pytest.mark.distributed(num_gpus=2)
def test_two():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

@pytest.mark.world_size(4)
def test_four():
    pass

@pytest.mark.profiled_vram_gib(13.8)
def test_memory():
    assert os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1")

@pytest.mark.profiled_vram_gib("much")
def test_no_memory():
    pass

@pytest.mark.alone
def test_alone():
    assert os.environ["STARTED_BY"] != str(os.getpid())

@pytest.mark.gpu_2
class TestClass:
    @pytest.mark.gpus(1)
    def test_closer(self):
        assert "," not in os.environ["CUDA_VISIBLE_DEVICES"]

@pytest.mark.distributed(2)
def test_other_arguments():
    pass

@pytest.mark.distributed(num_gpus="two")
def test_wrong_value():
    pass

def test_plain():
    assert os.environ["STARTED_BY"] == str(os.getpid())
"""


def test_markers_of_a_suite_are_read_as_ours(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makeconftest("import os\nos.environ.setdefault('STARTED_BY', str(os.getpid()))\n")
    pytester.makepyfile(test_it=TESTS)
    options = ("-v", "--cuda-fork-check", "--cuda-fork-device=phantom:sm_90x2")
    result = run_session(pytester, *options)
    assert_no_crash(result)
    result.assert_outcomes(passed=6, skipped=1, errors=3)
    result.stdout.fnmatch_lines([
        "test_it.py::test_one PASSED (*)*",
        "test_it.py::test_alone PASSED (spawn)*",
        "*@pytest.mark.gpus(memory='muchGiB')*reads @pytest.mark.profiled_vram_gib('much') as *",
        "*test_other_arguments: @pytest.mark.distributed(2) fits none of what cuda_fork_marker_map"
        " says of it: distributed(num_gpus=n) = gpus(n)",
        "*test_wrong_value: @pytest.mark.gpus('two'): n is a whole number of GPUs above 0 "
        "(cuda_fork_marker_map reads @pytest.mark.distributed(num_gpus='two') as gpus('two'))",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "alone = isolate",
            "'alone = isolate': there is no marker 'isolate': use check_captures, cuda_",
        ),
        ("a = b\n    b = a", "the lines make a circle: a = b; b = a"),
    ],
)
def test_a_wrong_map_is_a_usage_error(pytester: pytest.Pytester, lines: str, words: str) -> None:
    pytester.makeini(f"[pytest]\ncuda_fork_marker_map =\n    {lines}\n")
    pytester.makepyfile("def test_it(): pass")
    result = run_session(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ini option cuda_fork_marker_map: {words}" in result.stderr.str()
    assert_no_crash(result)
