import torch
from speculator_prefill import Speculator, TargetRunner

SIZES, WIDTH = (8, 4, 1), 4


def batches():
    generator = torch.Generator().manual_seed(0)
    for size in (4, 8, 4):
        yield (
            torch.randn(size, WIDTH, generator=generator),
            torch.randint(2, 40, (size,), generator=generator),
        )


def serve():
    speculator = Speculator(TargetRunner(max(SIZES)), SIZES, WIDTH)
    return [speculator.propose(hidden.cuda(), lens.cuda()).cpu() for hidden, lens in batches()]


def expected():
    return [hidden * lens.float().reciprocal()[:, None] for hidden, lens in batches()]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(4, WIDTH), (8, WIDTH), (4, WIDTH)]
