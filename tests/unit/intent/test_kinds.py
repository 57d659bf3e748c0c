"""Which skips are for want of a GPU, by what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.intent.kinds import Slip, gpus_wanted, skip_slip


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ("CUDA is not available", 1),
        ("CUDA not available", 1),
        ("requires a GPU", 1),
        ("No CUDA GPUs are available", 1),
        ("Need at least 2 GPUs to run the test.", 2),
        ("needs 4 or more CUDA devices", 4),
        ("test requires 8 gpus", 8),
        ("requires multiple GPUs", 2),
        ("This test only runs on ROCm or CUDA", 1),
        ("no NVIDIA driver found", 1),
        ("torch.cuda.device_count() < 1", 1),
        ("torch.cuda.device_count() < 2", 2),
        ("Not enough GPUs available: 1 < 2", 2),
        ("GPUs available (1) < required (4)", 4),
        ("CUDA is not available, or torch < 9", 1),
        ("needs a GPU, torch < 9", 1),
        (f"needs {'9' * 5000} GPUs", 1),
        ("requires at least two GPUs", 2),
        ("needs more than one GPU", 2),
        ("needs more than 2 GPUs", 3),
        ("Insufficient GPUs", 2),
        ("requires one CUDA device", 1),
        ("Torch not compiled with CUDA enabled", 1),
        ("PyTorch was not built with CUDA", 1),
        ("This test doesn't work without a GPU", 1),
        ("not supported on CPU, needs GPU", 1),
        ("does not run here, requires an NVIDIA GPU", 1),
        ("does not work without CUDA graphs", 0),
        ("not supported with this GPU, requires CUDA 12.4", 0),
        ("needs a GPU with FP8, which does not work without a GPU", 0),
        ("too slow", 0),
        ("CPU-only test", 0),
        ("only runs on CPU, never on CUDA", 0),
        ("FP8 needs a GPU with capability 8.9", 0),
        ("only Blackwell GPUs", 0),
        ("not supported on CUDA", 0),
        ("flaky on GPU", 0),
        ("at least 40 GiB of GPU memory", 0),
        ("block device missing", 0),
        ("requires ROCm", 0),
        ("Only test on ROCm", 0),
        ("AMD GPU required", 0),
        ("no Intel GPU found", 0),
        ("TPU devices not available", 0),
        ("needs an NVIDIA or AMD GPU", 1),
        ("neither CUDA nor ROCm is available", 1),
        ("CUDA 12.4 required", 0),
        ("This needs CUDA 12.4.", 0),
        ("requires CUDA >= 12.8", 0),
        ("needs CUDA 12+", 0),
        ("CUDA version is lower than 11.8", 0),
        ("needs 2 GPUs and CUDA 12.4", 2),
        ("needs CUDA, 16 GPUs", 16),
        ("no cuda:0", 1),
        ("CUDA toolkit version is older than v11", 0),
        ("needs six GPUs", 6),
        ("CUDA graphs not supported", 0),
        ("CUDA graphs need a GPU", 1),
        ("could not import 'cuda': No module named 'cuda'", 0),
        ("could not import 'cuda.bindings': No CUDA driver is available", 1),
        ("skipped on CUDA", 0),
        ("Skip this test on GPU", 0),
        ("skip on GPU-less machines", 1),
        ("for non-CUDA platforms", 0),
        ("", 0),
    ],
)
def test_a_skip_is_for_want_of_a_gpu_by_its_reason(reason: str, wanted: int) -> None:
    assert gpus_wanted(reason) == wanted


@given(st.text())
def test_any_reason_is_read(reason: str) -> None:
    assert gpus_wanted(reason) >= 0


def test_a_skip_is_wrong_where_what_was_promised_would_do() -> None:
    assert skip_slip("a", "whatever it says", 2, 2) == Slip("gpu-skipped", "a", "whatever it says")
    assert skip_slip("a", "CUDA is not available", 3, 2) is None  # its marker knows better
    assert skip_slip("a", "needs 4 GPUs", 0, 2) is None
    assert skip_slip("a", "too slow", 0, 2) is None
    slip = skip_slip("a", "no\n CUDA", 0, 1)
    assert slip is not None
    assert slip.words == "needs a GPU and was skipped, though GPUs were expected: no CUDA"
