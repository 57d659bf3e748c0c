import os

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def initialized():
    torch.cuda.is_available()


@pytest.mark.cuda_fork_ok(reason="the child only writes a file")
def test_fork_that_is_right(tmp_path):
    pid = os.fork()
    if pid == 0:
        (tmp_path / "note").write_text("done")
        os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / "note").read_text() == "done"
