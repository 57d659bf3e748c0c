"""Operations of a workflow run in parallel processes."""

import nbcuda
from nbcuda.worker import run_in_worker


@nbcuda.jit
def double(value: int) -> int:
    return 2 * value


def test_operations_run_in_workers():
    assert [run_in_worker(double.py_func, value) for value in (1, 2)] == [2, 4]
