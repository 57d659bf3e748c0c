import ctypes
import os

import torch
from pytest_cudafork import assert_replay_equals_eager

PARENT = os.getpid()


def load():
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # as torch.cuda.is_available() does


def test_load():
    load()


def test_load_in_a_worker():
    load()
    assert os.getpid() == PARENT, "this interpreter has imported the file itself"


def test_double():
    assert_replay_equals_eager(lambda x: x * 2, [torch.ones(4)], backend="software")
