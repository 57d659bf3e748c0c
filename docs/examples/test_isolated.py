import os

import pytest


def initialize_cuda():
    torch = pytest.importorskip("torch")
    torch.cuda.is_available()


@pytest.mark.cuda_isolated
def test_in_a_process_of_its_own():
    initialize_cuda()


@pytest.mark.cuda_isolated(method="forkserver", timeout=120)
def test_with_a_time_limit():
    initialize_cuda()


@pytest.mark.spawn_only
def test_in_a_fresh_interpreter():
    initialize_cuda()


def test_the_pytest_process_is_still_clean(cuda_state):
    assert cuda_state().safe_to_fork
    if os.fork() == 0:
        os._exit(0)
