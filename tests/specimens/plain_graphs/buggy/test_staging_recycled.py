import torch
from staging_recycled import Runner

SHAPES = ((4, 6), (4, 3), (4, 6))


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def serve():
    runner = Runner()
    return [runner(x.cuda()).cpu() for x in batches()]


def expected():
    return [x + (torch.arange(len(x)) * x.shape[1])[:, None] for x in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == list(SHAPES)
