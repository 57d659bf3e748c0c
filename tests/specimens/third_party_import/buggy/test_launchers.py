"""Training from a notebook."""

from accelerate.launchers import notebook_launcher


def training_function(rank: int, steps: int) -> None:
    assert sum(range(steps)) == 6


def test_every_process_trains():
    assert notebook_launcher(training_function, (4,)) == [0, 0]
