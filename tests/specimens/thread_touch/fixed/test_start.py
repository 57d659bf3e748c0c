"""The engine starts while the machine is being watched."""

from engine.llm import start_engine


def test_engine_starts():
    assert start_engine() == "engine 1 of 1"
