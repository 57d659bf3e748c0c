"""A captured training step whose learning rate is a number: the scheduler's steps do not reach it."""

import torch

WIDTH, STEPS = 4, 6


def trained(device, *, captured):
    weight = torch.nn.Parameter(torch.ones(WIDTH, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    inputs = torch.randn(STEPS, WIDTH, generator=torch.Generator().manual_seed(4)).to(device)
    static = torch.zeros(WIDTH, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = ((weight * static).sum() - 1) ** 2
        loss.backward()
        optimizer.step()  # named

    if captured:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        with torch.no_grad():
            weight.fill_(1)
    for x in inputs:
        static.copy_(x)
        graph.replay() if captured else step()
        schedule.step()
    return weight.detach().cpu()


def serve():
    return [trained("cuda", captured=True)]


def expected():
    return [trained("cpu", captured=False)]


if __name__ == "__main__":
    print(serve())
