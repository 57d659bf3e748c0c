import torch
from flashmla_planner import GraphManager

ROWS, WIDTH = 4, 8


def batches():
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield (
            torch.randn(ROWS, WIDTH, generator=generator),
            torch.randint(20, 400, (ROWS,), generator=generator),
        )


def serve():
    manager = GraphManager(ROWS, WIDTH)
    return [manager.decode(query.cuda(), lens.cuda()).cpu() for query, lens in batches()]


def expected():
    answers = []
    for query, lens in batches():
        splits = (lens + 15) // 16
        answers.append(query * splits.cumsum(0)[:, None] / splits[:, None])
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 3
