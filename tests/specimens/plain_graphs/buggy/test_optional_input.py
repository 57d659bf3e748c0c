import torch
from optional_input import Runner

ROWS, WIDTH = 4, 8


def batches():
    generator = torch.Generator().manual_seed(0)
    first, extra, second = (torch.randn(ROWS, WIDTH, generator=generator) for _ in range(3))
    return [(first, extra), (second,)]


def serve():
    runner = Runner(ROWS, WIDTH)
    return [runner(*(one.cuda() for one in batch)).cpu() for batch in batches()]


def expected():
    return [torch.tanh(sum(batch)) for batch in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 2
