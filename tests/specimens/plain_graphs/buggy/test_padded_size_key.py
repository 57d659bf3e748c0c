import torch
from padded_size_key import GraphManager

TOKENS, WIDTH = 12, 4
REQUESTS = (4, 12, 4)  # 1 + 2 drafted tokens; none accepted; and again


def batches():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(TOKENS, WIDTH, generator=generator), count) for count in REQUESTS]


def serve():
    manager = GraphManager(TOKENS, WIDTH)
    return [manager(hidden.cuda(), count).cpu() for hidden, count in batches()]


def expected():
    return [hidden[TOKENS // count - 1 :: TOKENS // count] for hidden, count in batches()]


def test_each_batch_is_answered():
    assert len(serve()) == len(REQUESTS)
