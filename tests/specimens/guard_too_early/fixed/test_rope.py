"""The kernel agrees with its reference."""

from engine.llm import run


def test_a_quarter_turn():
    assert run((1.0, 0.0)) == (0.0, 1.0)
