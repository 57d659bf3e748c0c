import torch
from max_seqlen_frozen import PAGES, ROWS, GraphRunner
from paged import BLOCK, paged_attention

WIDTH = 8
LENS = ([16, 7, 9], [13, 2], [3, 12, 5])


def state_and_batches():
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn((1 + ROWS * PAGES) * BLOCK, WIDTH, generator=generator)
    table = (torch.randperm(ROWS * PAGES, generator=generator) + 1).view(ROWS, PAGES)
    return cache, table, [(torch.randn(len(n), WIDTH, generator=generator), n) for n in LENS]


def serve():
    cache, table, batches = state_and_batches()
    runner = GraphRunner(cache.cuda(), table.cuda())
    return [runner(query.cuda(), lens).cpu() for query, lens in batches]


def expected():
    cache, table, batches = state_and_batches()
    return [
        paged_attention(query, cache, table[: len(lens)], torch.tensor(lens))
        for query, lens in batches
    ]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(len(lens), WIDTH) for lens in LENS]
