"""Which part of a model each rank holds: all of it by all ranks together, and heads that belong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_engine.model.config import LLAMA_3_8B, LlamaConfig
from sample_engine.model.config_file import read_config
from sample_engine.model.shards import Shard, config_of_shard, why_not_cut


def config_of(heads: int, kv_heads: int, intermediate: int, vocab: int = 100) -> LlamaConfig:
    """A shape."""
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=intermediate,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=64,
    )


@given(st.integers(1, 9), st.integers(1, 300))
def test_the_ranks_have_each_token_once_and_equal_rows(ranks: int, vocab: int) -> None:
    shards = [Shard(rank, ranks) for rank in range(ranks)]
    tokens = [token for shard in shards for token in range(vocab)[shard.vocabulary_of(vocab)]]
    assert tokens == list(range(vocab))
    assert {shard.rows_of(vocab) for shard in shards} == {-(-vocab // ranks)}
    for shard in shards:
        own = shard.vocabulary_of(vocab)
        assert own.stop - own.start <= shard.rows_of(vocab)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 8))
def test_query_heads_are_where_the_kv_head_is_that_they_read(
    kv_heads: int, group: int, ranks: int
) -> None:
    heads = kv_heads * group
    if why_not_cut(config_of(heads, kv_heads, ranks), ranks):
        return
    own = config_of_shard(config_of(heads, kv_heads, ranks), ranks)
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        queries = range(heads)[shard.part_of(heads)]
        here = range(kv_heads)[shard.kv_heads_of(kv_heads)]
        assert len(queries) == own.num_attention_heads
        assert len(here) == own.num_key_value_heads
        local_group = own.num_attention_heads // own.num_key_value_heads
        for at, query in enumerate(queries):
            assert here[at // local_group] == query // group


def test_what_cannot_be_cut_is_said_with_all_reasons() -> None:
    assert why_not_cut(LLAMA_3_8B, 8) == []
    assert why_not_cut(LLAMA_3_8B, 16) == []  # two ranks for each KV head
    assert why_not_cut(read_config("tiny"), 2) == []
    assert why_not_cut(config_of(6, 2, 50), 4) == [
        "num_attention_heads=6 is no multiple of it",
        "intermediate_size=50 is no multiple of it",
    ]
    assert why_not_cut(config_of(12, 3, 48), 2) == [
        "num_key_value_heads=3 is neither a multiple of it nor a divisor"
    ]


def test_one_rank_is_the_whole_model() -> None:
    assert config_of_shard(LLAMA_3_8B, 1) == LLAMA_3_8B
    assert Shard(0, 1).vocabulary_of(257) == slice(0, 257)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_of_the_8b_shape(ranks: int) -> None:
    own = config_of_shard(LLAMA_3_8B, ranks)
    assert own.num_attention_heads == 32 // ranks
    assert own.num_key_value_heads == 8 // ranks
    assert own.intermediate_size == 14336 // ranks
    assert (own.hidden_size, own.head_dim, own.vocab_size) == (4096, 128, 128256)
