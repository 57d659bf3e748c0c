import torch
from kv_writer_padding import TOKENS, WIDTH, GraphRunner

SLOTS = 16


def cache_and_batches():
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(SLOTS, WIDTH, generator=generator)
    batches = []
    for size in (TOKENS, 2, 4):
        slots = torch.randperm(SLOTS - 2, generator=generator)[:size] + 1
        batches.append((torch.randn(size, WIDTH, generator=generator), slots))
    return cache, batches


def serve():
    cache, batches = cache_and_batches()
    runner = GraphRunner(cache.cuda())
    return [runner(key.cuda(), slots.cuda()).cpu() for key, slots in batches]


def expected():
    cache, batches = cache_and_batches()
    answers = []
    for key, slots in batches:
        cache[slots] = key
        answers.append(cache[1:].clone())
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(SLOTS - 1, WIDTH)] * 3
