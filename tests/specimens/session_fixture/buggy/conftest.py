"""The world that the tests pretend to run in."""

import ctypes

import pytest


def current_device() -> int | None:
    try:
        return 0 if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0 else None  # touch: culprit
    except OSError:
        return None


@pytest.fixture(scope="session")
def world():
    return {"size": 1, "device": current_device()}
