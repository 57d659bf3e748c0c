"""A connector that only this test knows."""

from engine import connectors
from engine.llm import start_engine


def test_the_engine_core_finds_a_registered_connector(monkeypatch):
    monkeypatch.setitem(connectors.REGISTRY, "crash_once", "test_connector")
    assert start_engine("crash_once") == "test_connector"
