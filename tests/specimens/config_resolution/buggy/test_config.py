"""An engine of two ranks."""

from engine.llm import start_ranks


def test_both_ranks_start():
    assert start_ranks(tensor_parallel_size=2) == [0, 1]
