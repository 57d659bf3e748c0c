import pytest

torch = pytest.importorskip("torch")
from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager  # noqa: E402


class Manager:  # as a library has it: it knows nothing of tests
    def __init__(self, device):
        self.model = torch.nn.Linear(8, 8, device=device)
        self.tokens = torch.zeros(4, 8, device=device)

    @torch.no_grad()
    def capture(self):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self.model(self.tokens)  # the warm-up
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.model(self.tokens)

    def run(self):
        self.graph.replay()
        return self.out


def test_a_replay_is_what_the_model_computes(graph_backend):
    manager = Manager(graph_backend.device)
    manager.capture()
    eager = torch.no_grad()(manager.model)
    assert_replay_equals_eager(eager, [manager.tokens], replay=manager.run)


def test_weights_that_are_replaced_are_not_in_the_graph(graph_backend):
    manager = Manager(graph_backend.device)
    manager.capture()
    eager = torch.no_grad()(manager.model)

    def reload():
        manager.model.weight.data = manager.model.weight.data * 2

    with pytest.raises(ReplayDiffersError):
        assert_replay_equals_eager(eager, [manager.tokens], replay=manager.run, vary=[reload])
