import torch
from topk_buffer import KEPT, ROWS, Indexer

KEYS = 20


def values_and_batches():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(KEYS, generator=generator) + 1
    return values, [torch.randn(ROWS, KEYS, generator=generator) for _ in range(3)]


def serve():
    values, batches = values_and_batches()
    indexer = Indexer(values.cuda())
    return [indexer(scores.cuda()).cpu() for scores in batches]


def expected():
    values, batches = values_and_batches()
    return [values[scores.topk(KEPT).indices].sum(-1) for scores in batches]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS,)] * 3
