import torch
from metadata_views import Speculator

DESCS = ((16, 8), (8, 4), (1, 1))
WIDTH = 4


def batches():
    generator = torch.Generator().manual_seed(0)
    return [(desc, torch.randn(desc[1], WIDTH, generator=generator)) for desc in DESCS]


def serve():
    speculator = Speculator(DESCS, WIDTH)
    return [speculator.propose(desc, hidden.cuda()).cpu() for desc, hidden in batches()]


def expected():
    return [hidden * (tokens // reqs) ** 2 for (tokens, reqs), hidden in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(reqs, WIDTH) for _, reqs in DESCS]
