import torch
from fresh_tensor_producer import Stage


def weight_and_batches():
    generator = torch.Generator().manual_seed(0)
    weight, *batches = (torch.randn(rows, 8, generator=generator) for rows in (8, 4, 4, 4))
    return weight, batches


def serve():
    weight, batches = weight_and_batches()
    stage = Stage(weight.cuda())
    return [stage(x.cuda() * 2).cpu() for x in batches]


def expected():
    weight, batches = weight_and_batches()
    return [torch.relu((x * 2) @ weight) for x in batches]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(4, 8)] * 3
