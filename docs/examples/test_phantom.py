import pytest

torch = pytest.importorskip("torch")


def backend():
    if not torch.cuda.is_available():
        return "reference"
    major, _ = torch.cuda.get_device_capability()
    return {9: "hopper", 10: "blackwell"}.get(major, "triton")


@pytest.mark.parametrize(
    ("gpus", "expected"), [("sm_80", "triton"), ("sm_90", "hopper"), ("sm_100x8", "blackwell")]
)
def test_backend_of_a_gpu_that_is_not_here(phantom_cuda, gpus, expected):
    phantom_cuda(gpus)
    assert backend() == expected


def test_eight_gpus(phantom_cuda):
    phantom_cuda("sm_90x8")
    assert torch.cuda.device_count() == 8
    phantom_cuda.hide()
