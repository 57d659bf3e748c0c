import torch
from frozen_seed import Sampler, hashed

SEED, SHAPE = 4711, (4, 16)


def logits():
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def serve():
    sampler = Sampler(SEED, SHAPE)
    return [sampler(logits().cuda()).cpu() for _ in range(3)]


def expected():
    lanes = torch.arange(SHAPE[0] * SHAPE[1]).view(SHAPE) * 7919
    answers = []
    for step in (2, 3, 4):  # the warm-up was the first
        uniform = hashed(lanes + SEED + step).clamp(1e-6, 1 - 1e-6)
        answers.append(logits() - torch.log(-torch.log(uniform)))
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [SHAPE] * 3
