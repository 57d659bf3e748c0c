"""Grouping on the device."""

from frames.native import device_ready


def test_device_is_ready_or_absent():
    assert device_ready() in (True, False)
