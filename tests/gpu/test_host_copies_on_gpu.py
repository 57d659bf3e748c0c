"""Copies between host and device within a capture: CUDA answers what the software graph does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.sessions import assert_no_crash, needs_torch, run_session

pytestmark = [pytest.mark.gpu, needs_torch]


def test_cuda_answers_as_it_is_written_down() -> None:
    from tests.support.host_copies import COPIES

    command = [sys.executable, "-m", "tests.support.host_copies"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: copy.answer for name, copy in COPIES.items()}


@pytest.mark.parametrize("within", [True, False])
def test_a_pinned_tensor_that_is_gone_is_told_unless_the_capture_pinned_it(within: bool) -> None:
    """What was pinned before is given to others; torch 2.11 keeps what a capture pins."""
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend
    from pytest_cudafork.errors import ReplayFailedError

    there, plain = torch.zeros(4, device="cuda"), torch.full((4,), 3.0)
    held = {} if within else {"pinned": plain.pin_memory()}

    def fn() -> Any:
        pinned = plain.pin_memory() if within else held["pinned"]
        return there.copy_(pinned, non_blocking=True)

    graph = CudaBackend().capture(fn)
    graph.replay()
    torch.cuda.synchronize()
    assert there.tolist() == [3.0] * 4
    held.clear()
    if within:
        graph.replay()
        return
    with pytest.raises(ReplayFailedError, match="host memory of a copy") as caught:
        graph.replay()
    assert caught.value.finding.check == "freed-memory"


def test_what_the_host_does_within_a_capture_is_no_part_of_the_graph(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import torch

        def captured(work):
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                work()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                work()
            return graph

        def test_tensors_of_the_host_may_go():
            x, held = torch.ones(4, device="cuda"), {"lengths": torch.tensor([3, 2])}
            def work():
                scratch = torch.empty(2)
                scratch[0] = held["lengths"].sum()
                x.mul_(scratch[0].item())
            graph = captured(work)
            held.clear()
            graph.replay()
            assert x.tolist() == [25.0] * 4

        def test_a_plan_of_the_host_is_stale():
            lengths = torch.tensor([1, 2, 3])
            staging = torch.zeros(3, dtype=torch.int64).pin_memory()
            plan = torch.zeros(3, dtype=torch.int64, device="cuda")
            def work():
                staging.copy_(lengths.cumsum(0))
                plan.copy_(staging, non_blocking=True)
                plan.mul_(2)
            graph = captured(work)
            graph.replay()
            lengths.copy_(torch.tensor([2, 2, 2]))
            graph.replay()
        """
    )
    result = run_session(pytester, "-v", "--cuda-fork-captures=check")
    assert_no_crash(result)
    result.stdout.fnmatch_lines([
        "*test_tensors_of_the_host_may_go PASSED*",
        "*test_a_plan_of_the_host_is_stale FAILED*",
        "*stale-data*computed by the host within the capture*",
    ])  # fmt: skip
