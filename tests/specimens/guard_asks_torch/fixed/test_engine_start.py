"""The engine starts whatever the host program did before."""

from engine.llm import start_engine


def test_engine_core_finds_its_device():
    _, device = start_engine()
    assert device in ("cuda", "cpu")
