import torch
from last_token_indices import TOKENS, Speculator

LENS = ([3, 3, 3, 3], [7, 4], [6, 2, 4])


def batches():
    generator = torch.Generator().manual_seed(0)
    for lens in LENS:
        yield (
            torch.randint(1, 100, (TOKENS,), generator=generator),
            torch.tensor(lens),
            torch.randint(100, 200, (len(lens),), generator=generator),
        )


def serve():
    speculator = Speculator()
    return [speculator.propose(*(one.cuda() for one in batch)).cpu() for batch in batches()]


def expected():
    answers = []
    for input_ids, lens, next_tokens in batches():
        shifted = torch.cat([input_ids[1:], torch.zeros(1, dtype=torch.int64)])
        shifted[lens.cumsum(0) - 1] = next_tokens
        answers.append(shifted)
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(TOKENS,)] * 3
