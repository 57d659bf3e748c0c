import torch
from ubatch_key import UBatchWrapper

WIDTH = 4


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, WIDTH, generator=generator) for size in (4, 8, 4)]


def serve():
    wrapper = UBatchWrapper(8, WIDTH)
    wrapper.capture(4, ubatches=2)
    wrapper.capture(8, ubatches=4)
    return [wrapper(hidden.cuda()).cpu() for hidden in batches()]


def expected():
    return [hidden.softmax(-1) for hidden in batches()]


def test_each_batch_is_answered():
    assert len(serve()) == 3
