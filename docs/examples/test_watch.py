import ctypes
import os

import pytest
from pytest_cudafork import CudaForkError, watch


def load():
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # as torch.cuda.is_available() does


def test_what_a_part_of_a_program_did():
    with watch() as watched:
        load()
    assert [touch.culprit.name for touch in watched.touches] == ["load"]
    watched.check()  # raises where something is an error: nothing is yet


def test_a_fork_after_that_is_refused():
    with watch(guard=True) as watched:
        load()
        with pytest.raises(CudaForkError):
            os.fork()
    assert [fork.verdict for fork in watched.forks] == ["guarded"]
