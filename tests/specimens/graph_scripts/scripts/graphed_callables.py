"""Two blocks by make_graphed_callables, with an eager head, trained for a few steps."""

import torch

BATCH, WIDTH, STEPS = 4, 6, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.inner = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.relu(self.inner(self.norm(x)))


def train(device, *, graphed):
    torch.manual_seed(11)
    blocks = [Block().to(device), Block().to(device)]
    head = torch.nn.Linear(WIDTH, 1).to(device)
    parameters = [each for module in (*blocks, head) for each in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    calls = tuple(blocks)
    if graphed:
        sample = torch.randn(BATCH, WIDTH, device=device)
        sample_needs_grad = torch.randn(BATCH, WIDTH, device=device, requires_grad=True)
        calls = torch.cuda.make_graphed_callables(calls, ((sample,), (sample_needs_grad,)))
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=generator).to(device)
        optimizer.zero_grad(set_to_none=True)
        hidden = x
        for call in calls:
            hidden = call(hidden)
        loss = (head(hidden) - x.mean(-1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach().cpu().clone())
    return torch.stack(found)


def serve():
    return [train("cuda", graphed=True)]


def expected():
    return [train("cpu", graphed=False)]


if __name__ == "__main__":
    print(serve())
