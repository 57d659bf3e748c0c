"""Tuning runs in one worker per device."""

import pytest
from tuner.devices import available_devices
from tuner.worker import run_in_worker


@pytest.mark.parametrize("device", available_devices())  # touch: culprit
def test_tuning_returns_a_config(device):
    assert run_in_worker(dict, [("device", device)]) == {"device": device}
