import torch
from planner_outside_graph import TILE, GraphRunner

ROWS, WIDTH = 4, 8


def batches():
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield (
            torch.randn(ROWS, WIDTH, generator=generator),
            torch.randint(20, 400, (ROWS,), generator=generator),
        )


def serve():
    runner = GraphRunner(ROWS, WIDTH)
    return [runner(query.cuda(), lens.cuda()).cpu() for query, lens in batches()]


def expected():
    return [query * ((lens + TILE - 1) // TILE)[:, None] for query, lens in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 3
