import pytest
from pytest_cudafork import CudaForkError

SUMMARIZE = """
import ctypes, multiprocessing, sys

if __name__ == "__main__":
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # as torch.cuda.is_available() does
    multiprocessing.set_start_method(sys.argv[1])
    worker = multiprocessing.Process(target=print, args=("a summary",))
    worker.start()
    worker.join()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "summarize.py"
    path.write_text(SUMMARIZE)
    return path


def test_it_works_with_spawn(run_script, script):
    result = run_script(script, "spawn").check()
    assert result.stdout == "a summary\n"
    assert [start.method for start in result.starts] == ["spawn"]


def test_it_does_not_with_fork(run_script, script):
    with pytest.raises(CudaForkError, match="fork refused at"):
        run_script(script, "fork")
