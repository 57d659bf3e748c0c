import torch
from host_block_list import QUERY, WIDTH, Writer
from paged import BLOCK

BLOCKS = 10
CHOSEN = ([5, 3], [7], [2, 8])


def batches():
    generator = torch.Generator().manual_seed(0)
    for blocks in CHOSEN:
        yield torch.randn(len(blocks), QUERY, WIDTH, generator=generator), blocks


def serve():
    writer = Writer(BLOCKS)
    return [writer(key.cuda(), blocks).cpu() for key, blocks in batches()]


def expected():
    cache, answers = torch.zeros(BLOCKS, BLOCK, WIDTH), []
    for key, blocks in batches():
        cache[blocks, :QUERY] = key
        answers.append(cache[2:].flatten(0, 1).clone())
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [((BLOCKS - 2) * BLOCK, WIDTH)] * 3
