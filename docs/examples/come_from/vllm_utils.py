import pytest
from pytest_cudafork import gpu, isolated

fork_new_process_for_each_test = isolated(method="fork")
spawn_new_process_for_each_test = isolated(method="spawn")


def create_new_process_for_each_test(method="auto"):
    return isolated(method=method)


def multi_gpu_test(*, num_gpus):
    return lambda test: pytest.mark.distributed(num_gpus=num_gpus)(isolated(gpus=num_gpus)(test))


def wait_for_gpu_memory_to_clear(*, devices, threshold_bytes=None, timeout_s=120, **_):
    gpu.wait_idle(devices, spare=f"{threshold_bytes or 2 << 30}", timeout=timeout_s, own=True)
