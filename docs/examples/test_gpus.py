import os

import pytest


def visible():
    return os.environ["CUDA_VISIBLE_DEVICES"].split(",")


@pytest.mark.gpus(1)
def test_on_one_gpu():
    assert len(visible()) == 1


@pytest.mark.gpus(2)
def test_on_two_gpus():
    torch = pytest.importorskip("torch")
    assert torch.cuda.device_count() == 2


@pytest.mark.gpus(1, share=True)
def test_that_needs_little_of_a_gpu():
    assert len(visible()) == 1
