import os

import pytest


def work_on_gpu(numbers):
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return os.getpid(), sum(torch.tensor(numbers, device=device).tolist())


@pytest.mark.parametrize("method", ["run_forked", "run_spawned", "run_forkserver"])
def test_work_in_a_child(request, method, cuda_uninitialized):
    run = request.getfixturevalue(method)
    pid, total = run(work_on_gpu, [1, 2, 3], timeout=120)
    assert pid != os.getpid()
    assert total == 6


def test_the_child_raises_what_the_function_raises(run_spawned):
    with pytest.raises(ZeroDivisionError):
        run_spawned(lambda: 1 / 0)
