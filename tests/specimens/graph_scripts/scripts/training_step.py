"""Whole-network capture: forward, backward and a capturable Adam in one graph, as in torch's notes."""

import torch

BATCH, WIDTH, STEPS = 8, 6, 5


def network(device):
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    ).to(device)


def data():
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(STEPS, BATCH, WIDTH, generator=generator)
    return inputs, inputs.sum(-1, keepdim=True)


def losses(device, *, captured):
    model = network(device)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=captured)
    inputs, targets = (each.to(device) for each in data())
    start = {name: each.clone() for name, each in model.state_dict().items()}
    static_input, static_target = torch.zeros_like(inputs[0]), torch.zeros_like(targets[0])

    def train(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if not captured:
        return torch.stack([train(x, y).detach() for x, y in zip(inputs, targets)])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(static_input, static_target)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static_loss = criterion(model(static_input), static_target)
        static_loss.backward()
        optimizer.step()

    # begin anew: the warm-up has trained on nothing
    model.load_state_dict(start)
    for state in optimizer.state.values():
        for each in state.values():
            each.zero_()
    found = []
    for x, y in zip(inputs, targets):
        static_input.copy_(x)
        static_target.copy_(y)
        graph.replay()
        found.append(static_loss.detach().clone())
    return torch.stack(found).cpu()


def serve():
    return [losses("cuda", captured=True)]


def expected():
    return [losses("cpu", captured=False)]


if __name__ == "__main__":
    print(serve())
