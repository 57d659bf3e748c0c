"""Two epochs."""

from speech.data import loader
from speech.model import Model


def test_every_epoch_sees_every_utterance():
    model = Model()
    for _ in range(2):
        assert sum(model.step(batch) for batch in loader()) == 12.0
