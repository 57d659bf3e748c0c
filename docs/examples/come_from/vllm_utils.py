import pytest
from pytest_cudafork import isolated

fork_new_process_for_each_test = isolated(method="fork")
spawn_new_process_for_each_test = isolated(method="spawn")


def create_new_process_for_each_test(method=None):
    return isolated(method=method or "auto")


def multi_gpu_test(*, num_gpus):
    selected = pytest.mark.distributed(num_gpus=num_gpus)
    return lambda function: selected(isolated(gpus=num_gpus)(function))
