import pytest

torch = pytest.importorskip("torch")
from pytest_cudafork import GraphCaptureError, assert_replay_equals_eager  # noqa: E402


@pytest.mark.graph_capture(backends=["software", "cuda"])
def test_a_step_can_be_replayed(graph_backend):
    hidden = torch.randn(4, 8, device=graph_backend.device)
    lengths = torch.tensor([3, 5, 2, 7], device=graph_backend.device)

    def step(hidden, lengths):
        return hidden / lengths[:, None]

    assert_replay_equals_eager(step, [hidden, lengths], vary=[lambda: lengths.fill_(1)])


def test_a_frozen_length_is_found():
    hidden, lengths = torch.randn(4, 8), [3, 5, 2, 7]

    def step(hidden):
        return hidden / max(lengths)  # a number of Python: the graph keeps the first one

    def longer():
        lengths[0] = 9

    with pytest.raises(GraphCaptureError, match="frozen"):
        assert_replay_equals_eager(step, [hidden], vary=[longer], backend="software")
