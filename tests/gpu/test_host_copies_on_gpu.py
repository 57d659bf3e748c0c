"""Copies between host and device within a capture: CUDA answers what the software graph does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.sessions import needs_torch

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
