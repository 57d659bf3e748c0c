"""A loop that removes noise, in a graph that draws from a generator of its own."""

import torch

WIDTH, STEPS = 4, 3


def network():
    layer = torch.nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(WIDTH) / 2)
        layer.bias.fill_(0.25)
    return layer


@torch.no_grad()
def serve():
    device = torch.device("cuda")
    layer = network().to(device)
    generator = torch.Generator(device=device).manual_seed(7)
    latent, time = torch.ones(1, WIDTH, device=device), torch.zeros(1, device=device)

    def step():
        noise = torch.randn(latent.shape, generator=generator, device=device)
        latent.sub_(layer(latent) * time).add_(noise * 0.01)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        step()
    latent.fill_(1)
    answers = []
    for each in torch.linspace(1, 0, STEPS):
        time.fill_(float(each))
        graph.replay()
        answers.append(latent.cpu())
    return answers


@torch.no_grad()
def expected():
    layer, latent, answers = network(), torch.ones(1, WIDTH), []
    for time in torch.linspace(1, 0, STEPS):
        latent = latent - layer(latent) * time  # and noise of a hundredth
        answers.append(latent)
    return answers


if __name__ == "__main__":
    print(serve())
