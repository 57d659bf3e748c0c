import torch
from default_stream import LoraPath


def weight_and_batches():
    generator = torch.Generator().manual_seed(0)
    weight, *batches = (torch.randn(rows, 8, generator=generator) for rows in (8, 4, 4))
    return weight, batches


def serve():
    weight, batches = weight_and_batches()
    path = LoraPath(weight.cuda())
    return [path(x.cuda()).cpu() for x in batches]


def expected():
    weight, batches = weight_and_batches()
    return [x + x @ weight for x in batches]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(4, 8)] * 2
