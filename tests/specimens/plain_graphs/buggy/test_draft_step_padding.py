import torch
from draft_step_padding import PAGES, ROWS, WIDTH, DraftRunner
from paged import BLOCK, paged_attention, slots_of


def cache_and_batches():
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn((1 + ROWS * PAGES) * BLOCK, WIDTH, generator=generator)
    cache[:BLOCK] = 0
    blocks = (torch.randperm(ROWS * PAGES, generator=generator) + 1).view(ROWS, PAGES)
    batches = [
        (torch.randn(4, WIDTH, generator=generator) / 4, blocks, torch.tensor([2, 5, 3, 4])),
        # Two requests are left, and the first has been given the blocks that the fourth had.
        (torch.randn(2, WIDTH, generator=generator) / 4, blocks[[3, 1]], torch.tensor([3, 2])),
    ]
    return cache, batches


def serve():
    cache, batches = cache_and_batches()
    runner = DraftRunner(cache.cuda())
    return [runner(*(one.cuda() for one in batch)).cpu() for batch in batches]


def expected():
    cache, batches = cache_and_batches()
    answers = []
    for hidden, blocks, seq_lens in batches:
        cache[slots_of(blocks, seq_lens)] = hidden
        answers.append(paged_attention(hidden, cache, blocks, seq_lens + 1))
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(4, WIDTH), (2, WIDTH)]
