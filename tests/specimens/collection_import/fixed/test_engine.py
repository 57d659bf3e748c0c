"""The engine answers."""

from helpers import run_engine


def test_engine_answers():
    assert run_engine("hello") == "HELLO"
