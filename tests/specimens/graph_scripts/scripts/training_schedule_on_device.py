"""A captured training step whose learning rate is a tensor, which the schedule changes in place."""

import torch

WIDTH, STEPS = 4, 6


def trained(device, *, captured):
    weight = torch.nn.Parameter(torch.ones(WIDTH, device=device))
    rate = torch.tensor(0.5, device=device)
    optimizer = torch.optim.Adam([weight], lr=rate if captured else 0.5, capturable=captured)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    inputs = torch.randn(STEPS, WIDTH, generator=torch.Generator().manual_seed(4)).to(device)
    static = torch.zeros(WIDTH, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = ((weight * static).sum() - 1) ** 2
        loss.backward()
        optimizer.step()

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
            for state in optimizer.state.values():
                for each in state.values():
                    each.zero_()
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
