"""The marker, the fixtures and the option of graph tests, in sessions of their own."""

from __future__ import annotations

import os

import pytest

from pytest_cudafork.capture.choose import why_no_gpu
from pytest_cudafork.settings.real_driver import has_kernel_part
from tests.support.sessions import assert_no_crash, needs_torch, outcomes, run_session

pytestmark = needs_torch

no_gpu = pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")

TESTS = """
import pytest, torch
from pytest_cudafork import assert_replay_equals_eager
from pytest_cudafork.capture.choose import resolve

def double(x):
    return x * 2

@pytest.mark.graph_capture(backends=["software", "cuda"])
def test_both():
    assert resolve("auto") == "software"
    assert_replay_equals_eager(double, [torch.ones(2)])

@pytest.mark.graph_capture
def test_bare(graph_backend, capture_pair):
    x = torch.ones(2, device=graph_backend.device)
    pair = capture_pair(lambda desc, warmup: ((lambda: x * 2), {}), 1)
    assert pair.report.backend == graph_backend.name

@pytest.mark.graph_capture(backends=["cuda"])
def test_real():
    raise AssertionError

@pytest.mark.graph_capture(backends=["cud"])
def test_wrong():
    raise AssertionError

def test_unmarked(capture_pair):
    x = torch.ones(2)
    assert capture_pair(lambda desc: lambda: x * 2, 1).report.backend == "software"

class TestMethods:
    @pytest.mark.parametrize("n", [1, 2])
    @pytest.mark.graph_capture(backends=["software"])
    def test_of_a_class(self, n):
        assert_replay_equals_eager(double, [torch.ones(n)])
"""


@no_gpu
def test_a_marked_test_runs_once_with_each_backend(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = run_session(pytester, "-v", "-rs", "--strict-markers")
    assert_no_crash(result)
    assert outcomes(result) == {
        "test_both[software]": "PASSED",
        "test_both[cuda]": "SKIPPED",
        "test_bare[software]": "PASSED",
        "test_bare[cuda]": "SKIPPED",
        "test_real[cuda]": "SKIPPED",
        "test_wrong": "ERROR",
        "test_unmarked": "PASSED",
        "TestMethods::test_of_a_class[software-1]": "PASSED",
        "TestMethods::test_of_a_class[software-2]": "PASSED",
    }
    # a container shows a part of the driver of its machine
    why = why_no_gpu() if has_kernel_part() else "no GPU: /dev/nvidiactl is not there"
    result.stdout.fnmatch_lines_random(
        [
            f"graphs: software; cuda skipped ({why})",
            f"*SKIPPED*the cuda graph cannot be used here: {why}",
            "*test_wrong: @pytest.mark.graph_capture(backends=*cud*one or both of software, cuda",
        ]
    )


@no_gpu
def test_the_option_says_what_auto_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = run_session(pytester, "-v", "-rs", "--cuda-fork-graphs=software", "-k", "both")
    assert outcomes(result) == {"test_both[software]": "PASSED", "test_both[cuda]": "SKIPPED"}
    result.stdout.fnmatch_lines_random(
        ["graphs: software; cuda skipped (--cuda-fork-graphs=software)"]
    )
    result = run_session(pytester, "--cuda-fork-graphs=cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--cuda-fork-graphs=cuda: real graphs cannot be captured here*"])
    result = run_session(pytester, "--cuda-fork-graphs=gpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'gpu' is not a way to capture graphs: use auto*"])


def test_a_session_without_graphs_says_nothing_of_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_a():\n    assert 'torch' not in sys.modules\n")
    for args in ((), ("--cuda-fork-graphs=software",)):
        result = run_session(pytester, *args)
        result.assert_outcomes(passed=1)
        assert "graphs:" not in result.stdout.str()


@no_gpu
def test_a_marked_test_may_run_in_a_process_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest, torch
        from pytest_cudafork import assert_replay_equals_eager

        @pytest.mark.cuda_isolated(method="spawn")
        @pytest.mark.graph_capture
        def test_apart():
            assert_replay_equals_eager(lambda x: x * 2, [torch.ones(2)])
        """
    )
    result = run_session(pytester, "-v")
    assert outcomes(result) == {"test_apart[software]": "PASSED", "test_apart[cuda]": "SKIPPED"}


def test_a_failure_shows_the_findings_and_not_the_plugins_own_code(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import torch
        from pytest_cudafork import assert_replay_equals_eager

        def test_frozen():
            k = [1]
            x = torch.ones(2)
            assert_replay_equals_eager(
                lambda x: x * k[0], [x], vary=[lambda: k.append(k.pop() + 1)], backend="software"
            )
        """
    )
    result = run_session(pytester)
    text = result.stdout.str()
    assert "[replay-differs] output: 2 of 2 elements differ" in text
    assert "what to do: " in text
    assert "capture/replay.py" not in text
