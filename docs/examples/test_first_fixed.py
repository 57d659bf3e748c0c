import functools
import os

import torch


@functools.cache
def have_gpu():
    return torch.cuda.is_available()


def test_child():
    if os.fork() == 0:
        os._exit(0)
