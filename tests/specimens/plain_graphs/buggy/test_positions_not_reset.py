import torch
from positions_not_reset import WIDTH, Runner

SLOTS = 16
# The second request is given the locations of two that are done.
STEPS = (("decode", [3, 9, 5, 12]), ("prefill", [5, 12, 1]), ("decode", [4, 7]))


def cache_and_steps():
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(SLOTS, WIDTH, generator=generator)
    steps = []
    for name, loc in STEPS:
        hidden = torch.randn(len(loc), WIDTH, generator=generator)
        positions = torch.randint(0, 50, (len(loc),), generator=generator)
        steps.append((name, (hidden, positions, torch.tensor(loc))))
    return cache, steps


def serve():
    cache, steps = cache_and_steps()
    runner = Runner(cache.cuda())
    return [getattr(runner, name)(*(one.cuda() for one in batch)).cpu() for name, batch in steps]


def expected():
    cache, steps = cache_and_steps()
    answers = []
    for _, (hidden, positions, loc) in steps:
        cache[loc] = hidden * torch.cos(positions.float())[:, None]
        answers.append(cache[1:].clone())
    return answers


def test_each_step_is_answered():
    assert [answer.shape for answer in serve()] == [(SLOTS - 1, WIDTH)] * 3
