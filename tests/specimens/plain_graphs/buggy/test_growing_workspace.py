import torch
from growing_workspace import WIDTH, GraphRunner

SIZES = (4, 32, 4)


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, WIDTH, generator=generator) for size in SIZES]


def serve():
    runner = GraphRunner()
    first, second, third = batches()
    answers = [runner(first.cuda()).cpu(), runner(second.cuda()).cpu()]
    activations = [torch.ones(8, WIDTH, device="cuda") for _ in range(64)]
    answers.append(runner(third.cuda()).cpu())
    return [*answers, torch.stack(activations).cpu()]


def expected():
    answers = [torch.sin(query) + torch.sin(query * 2) for query in batches()]
    return [*answers, torch.ones(64, 8, WIDTH)]


def test_each_batch_is_answered():
    assert [answer.shape for answer in serve()[:3]] == [(size, WIDTH) for size in SIZES]
