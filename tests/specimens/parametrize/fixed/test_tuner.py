"""Tuning runs in one worker per device."""

import pytest
from tuner.devices import available_devices
from tuner.worker import run_in_worker


def _tune(device: str) -> dict:
    return {"device": device, "usable": device in available_devices()}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_tuning_returns_a_config(device):
    config = run_in_worker(_tune, device)
    if not config["usable"]:
        pytest.skip(f"no {device} here")
    assert config["device"] == device
