import torch
from attribute_rebound import GraphedNorm

ROWS, WIDTH = 4, 8


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, WIDTH, generator=generator) + shift for shift in (3, -3, 1)]


def serve():
    norm = GraphedNorm(ROWS, WIDTH)
    return [norm(x.cuda()).cpu() for x in batches()]


def expected():
    mean, answers = torch.zeros(WIDTH), []
    for x in batches():
        mean = 0.5 * mean + 0.5 * x.mean(0)
        answers.append(x - mean)
    return answers


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()] == [(ROWS, WIDTH)] * 3
