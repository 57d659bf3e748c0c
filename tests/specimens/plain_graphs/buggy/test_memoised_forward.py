import torch
from memoised_forward import GraphRunner


def weight_and_batches():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 32, generator=generator)
    return weight, [torch.randn(4, 8, generator=generator) for _ in range(3)]


def serve():
    weight, batches = weight_and_batches()
    runner = GraphRunner(weight.cuda(), 4)
    return [runner(hidden.cuda()).cpu() for hidden in batches]


def expected():
    weight, batches = weight_and_batches()
    return [hidden @ weight for hidden in batches]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(4, 32)] * 3
