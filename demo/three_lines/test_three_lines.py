import multiprocessing

import torch

HAVE_GPU = torch.cuda.is_available()


def test_a_worker() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-2]) == [2]
