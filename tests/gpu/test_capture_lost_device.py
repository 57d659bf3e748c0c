"""A replay after which CUDA is of no use: what was found is told all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

BODY = """
import warnings

import torch

from pytest_cudafork import {error}, assert_replay_equals_eager
from pytest_cudafork.capture.pair.capture_pair import capture_pair

warnings.simplefilter("error")
table, index = torch.ones(4, device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")

def out_of_range():
    index.fill_(1 << 20)

try:
    {call}
except {error} as error:
    print(error)
"""
CALLS = {
    "ReplayDiffersError": "assert_replay_equals_eager(lambda i: table[i], [index],"
    " vary=[out_of_range], backend='cuda')",
    "CapturePairError": "capture_pair(lambda desc, warmup: (lambda: table[index], {}), 2,"
    " persistent={'index': index}, vary=[out_of_range], backend='cuda')",
}


@pytest.mark.parametrize("error", CALLS)
def test_a_replay_that_ends_in_an_assertion_of_the_device_is_told(error: str) -> None:
    code = BODY.replace("{error}", error).replace("{call}", CALLS[error])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "the replay ended with: CUDA error: device-side assert" in done.stdout, done.stderr
    assert "vary[0]" in done.stdout or "out_of_range" in done.stdout
    assert done.returncode == 0, done.stderr
