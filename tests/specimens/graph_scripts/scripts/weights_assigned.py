"""Averaged weights become a module's own: the graph reads the memory of those before."""

import torch

WIDTH = 4


def network():
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WIDTH)


@torch.no_grad()
def serve():
    layer = network().to(torch.device("cuda"))
    averaged = {name: value * 2 for name, value in layer.state_dict().items()}
    x = torch.ones(1, WIDTH, device="cuda")
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)  # named
    layer.load_state_dict(averaged, assign=True)
    graph.replay()
    return [out.cpu()]


@torch.no_grad()
def expected():
    layer = network()
    layer.load_state_dict({name: value * 2 for name, value in layer.state_dict().items()})
    return [layer(torch.ones(1, WIDTH))]


if __name__ == "__main__":
    print(serve())
