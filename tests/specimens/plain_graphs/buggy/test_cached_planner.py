import torch
from cached_planner import DecodeBackend

ROWS, WIDTH = 4, 8


def batches():
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield (
            torch.randn(ROWS, WIDTH, generator=generator),
            torch.randint(2, 99, (ROWS,), generator=generator),
        )


def serve():
    backend = DecodeBackend(ROWS, WIDTH)
    return [backend.decode(query.cuda(), lens.cuda()).cpu() for query, lens in batches()]


def expected():
    return [query * lens.float().rsqrt()[:, None] + lens[:, None] for query, lens in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 3
