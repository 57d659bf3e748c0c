"""Two ranks share the work."""

from nanovllm.llm_engine import LLMEngine


def test_each_rank_adds_its_part():
    assert LLMEngine(tensor_parallel_size=2).step([1, 2]) == [3, 6]
