import torch
from paged import BLOCK, paged_attention
from plan_not_refreshed import Decoder

ROWS, PAGES, WIDTH = 4, 3, 8


def cache_and_batches():
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn((1 + ROWS * PAGES) * BLOCK, WIDTH, generator=generator)
    batches = []
    for _ in range(3):
        pages = (torch.randperm(ROWS * PAGES, generator=generator) + 1).view(ROWS, PAGES)
        lens = torch.randint(2, BLOCK * PAGES + 1, (ROWS,), generator=generator)
        batches.append((torch.randn(ROWS, WIDTH, generator=generator), pages, lens))
    return cache, batches


def serve():
    cache, batches = cache_and_batches()
    decoder = Decoder(cache.cuda(), ROWS, PAGES)
    return [decoder(*(one.cuda() for one in batch)).cpu() for batch in batches]


def expected():
    cache, batches = cache_and_batches()
    return [paged_attention(query, cache, pages, lens) for query, pages, lens in batches]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 3
