import torch
from draft_rollback import Drafter

WIDTH = 8
REJECTED = (False, False, True, False)


def tokens():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(WIDTH, generator=generator) for _ in REJECTED]


def serve():
    drafter = Drafter(WIDTH)
    pairs = zip(tokens(), REJECTED)
    return [drafter(token.cuda(), rejected).cpu() for token, rejected in pairs]


def expected():
    saved = state = torch.zeros(WIDTH)
    answers = []
    for token, rejected in zip(tokens(), REJECTED):
        saved = saved if rejected else state
        state = torch.tanh(saved + token)
        answers.append(state)
    return answers


def test_each_token_is_answered():
    assert [answer.shape for answer in serve()] == [(WIDTH,)] * 4
