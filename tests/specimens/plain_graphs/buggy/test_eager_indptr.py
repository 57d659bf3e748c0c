import torch
from eager_indptr import Backend, GraphRunner

ROWS = 4


def kv_and_lengths():
    generator = torch.Generator().manual_seed(0)
    kv = torch.randn(100, generator=generator)
    return kv, [torch.randint(2, 20, (ROWS,), generator=generator) for _ in range(3)]


def serve():
    kv, lengths = kv_and_lengths()
    runner = GraphRunner(Backend(ROWS, kv.cuda()))
    return [runner(lens.cuda()).cpu() for lens in lengths]


def expected():
    kv, lengths = kv_and_lengths()
    answers = []
    for lens in lengths:
        starts = [0, *lens.cumsum(0).tolist()]
        sums = kv.cumsum(0)
        answers.append(torch.stack([sums[b] - sums[a] for a, b in zip(starts, starts[1:])]))
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS,)] * 3
