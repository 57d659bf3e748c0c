"""The first call captures and returns what the capture handed out, which nothing has computed."""

import functools

import torch


def graphed(function):
    """Capture at the first call, replay from the second on."""
    state = {}

    @functools.wraps(function)
    def call(x):
        if not state:
            state["x"] = x.clone()
            function(state["x"])
            torch.cuda.synchronize()
            state["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(state["graph"]):
                state["out"] = function(state["x"])
        else:
            state["x"].copy_(x)
            state["graph"].replay()
        return state["out"].clone()  # named

    return call


def model(x):
    return torch.nn.functional.silu(x) * 3 + 1


def inputs():
    return list(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))


def serve():
    run = graphed(model)
    return [run(x.cuda()).cpu() for x in inputs()]


def expected():
    return [model(x) for x in inputs()]


if __name__ == "__main__":
    print(serve())
