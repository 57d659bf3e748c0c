"""KV cache sharing between two engines."""

from kv_cache_sharing import share


def test_the_second_engine_finds_the_first_ones_cache():
    assert share("Hello, how are you?")
