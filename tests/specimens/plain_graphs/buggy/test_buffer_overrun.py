import torch
from buffer_overrun import SLOTS, WIDTH, DecodeRunner


def batches():
    generator = torch.Generator().manual_seed(0)
    for size in (3, 2, 4):
        seq_lens = torch.randint(1, 20, (size,), generator=generator)
        slots = torch.randperm(SLOTS // 2 - 1, generator=generator)[:size] * 2 + 2
        yield torch.randn(size, WIDTH, generator=generator), seq_lens, slots


def serve():
    runner = DecodeRunner()
    return [runner(*(one.cuda() for one in batch)).cpu() for batch in batches()]


def expected():
    answers = []
    for hidden, seq_lens, slots in batches():
        cache = torch.zeros(SLOTS, WIDTH)
        cache[slots] = hidden * (seq_lens + 1)[:, None]
        answers.append(cache[1:])
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(SLOTS - 1, WIDTH)] * 3
