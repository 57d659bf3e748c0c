"""Training starts."""

from trainer import main


def test_training_reports_its_device():
    assert main().startswith("trained on c")
