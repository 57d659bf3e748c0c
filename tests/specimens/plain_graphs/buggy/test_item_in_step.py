import torch
from item_in_step import Sampler

ROWS, VOCABULARY = 3, 16


def batches():
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield (
            torch.randn(ROWS, VOCABULARY, generator=generator),
            torch.randint(0, VOCABULARY, (ROWS,), generator=generator),
        )


def serve():
    sampler = Sampler(ROWS, VOCABULARY)
    return [sampler(logits.cuda(), tokens.cuda()).cpu() for logits, tokens in batches()]


def expected():
    return [
        (logits / logits.abs().max()).softmax(-1).gather(-1, tokens[:, None])
        for logits, tokens in batches()
    ]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, 1)] * 3
