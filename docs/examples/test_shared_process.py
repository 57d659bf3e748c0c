import pytest

pytestmark = pytest.mark.cuda_isolated(method="forkserver", scope="module")


@pytest.fixture(scope="module")
def model():
    torch = pytest.importorskip("torch")
    return torch.nn.Linear(4, 2)  # imagine 30 seconds of loading


def test_its_weights(model):
    assert model.weight.shape == (2, 4)


def test_its_bias(model):
    assert model.bias.shape == (2,)
