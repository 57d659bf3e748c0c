import torch
from lora_mapping import TOKENS, GraphRunner

ADAPTERS, WIDTH = 4, 8
CHOSEN = ([1, 1, 3, 2, 2, 3], [2, 0, 1, 1, 3, 0])


def weights_and_batches():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(ADAPTERS, WIDTH, WIDTH, generator=generator)
    return weights, [(torch.randn(TOKENS, WIDTH, generator=generator), one) for one in CHOSEN]


def serve():
    weights, batches = weights_and_batches()
    runner = GraphRunner(weights.cuda())
    return [runner(hidden.cuda(), adapters).cpu() for hidden, adapters in batches]


def expected():
    weights, batches = weights_and_batches()
    return [torch.einsum("tw,twv->tv", hidden, weights[adapters]) for hidden, adapters in batches]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(TOKENS, WIDTH)] * 2
