"""The world that the tests pretend to run in."""

import pytest


@pytest.fixture(scope="session")
def world():
    return {"size": 1, "device": None}
