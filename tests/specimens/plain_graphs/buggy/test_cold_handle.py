import torch
from cold_handle import Head

ROWS, WIDTH, VOCABULARY = 4, 8, 16


def batches():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(WIDTH, VOCABULARY, generator=generator)
    return weights, [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(3)]


def serve():
    weights, hidden = batches()
    head = Head(weights.cuda())
    return [head(each.cuda()).cpu() for each in hidden]


def expected():
    weights, hidden = batches()
    return [each @ weights for each in hidden]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, VOCABULARY)] * 3
