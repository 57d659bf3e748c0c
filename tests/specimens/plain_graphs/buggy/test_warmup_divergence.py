import torch
from warmup_divergence import Runner

SHAPE = (4, 8)


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SHAPE, generator=generator) * 4 for _ in range(3)]


def serve():
    runner = Runner(SHAPE)
    return [runner(scores.cuda()).cpu() for scores in batches()]


def expected():
    return [(scores * 0.5).clamp(max=2.0) for scores in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [SHAPE] * 3
