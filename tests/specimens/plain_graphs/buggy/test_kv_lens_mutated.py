import torch
from kv_lens_mutated import Runner
from paged import BLOCK, paged_attention

ROWS, PAGES, WIDTH = 3, 4, 8


def requests():
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn((1 + ROWS * PAGES) * BLOCK, WIDTH, generator=generator)
    pages = (torch.randperm(ROWS * PAGES, generator=generator) + 1).view(ROWS, PAGES)
    lens = torch.tensor([3, 1, 7])
    return cache, pages, lens, [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(3)]


def serve():
    *state, queries = requests()
    runner = Runner(*(one.cuda() for one in state))
    return [runner.decode(query.cuda()).cpu() for query in queries]


def expected():
    cache, pages, lens, queries = requests()
    return [
        paged_attention(query, cache, pages, lens + step)
        for step, query in enumerate(queries, start=1)
    ]


def test_each_step_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 3
