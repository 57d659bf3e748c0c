import os

import pytest
from pytest_cudafork import isolated


@isolated
def test_in_a_process_of_its_own():
    torch = pytest.importorskip("torch")
    torch.cuda.is_available()


@pytest.fixture(scope="session")
def server():
    yield {"port": 8000, "pid": os.getpid()}  # imagine a minute until it answers
    print("the server is stopped once")


@isolated(method="fork", fixtures="inherit", timeout=120)
def test_with_the_server_that_runs_already(server):
    assert server["pid"] == os.getppid()


@isolated(method="spawn", env={"ENGINE_BACKEND": "eager"})
def start_engine(size):
    return os.environ["ENGINE_BACKEND"], size, os.getpid()


def test_a_helper_of_two_processes():
    first, second = start_engine(1), start_engine(2)
    assert first[:2] == ("eager", 1)
    assert len({first[2], second[2], os.getpid()}) == 3


def test_the_pytest_process_is_still_clean(cuda_state):
    assert cuda_state().safe_to_fork
