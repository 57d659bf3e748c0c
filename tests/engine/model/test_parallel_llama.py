"""Ranks' parts of a Llama: together they compute what the whole model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sample_engine.model.loading import load_model
from tests.engine.support.engine import VOCAB, model_folder, plain_logits, plain_model
from tests.engine.support.ranks import ThreadRank, on_each_rank

TOKENS = [3, 1, 96, 48, 0, 49, 11]


def part_of(folder: str, rank: ThreadRank, load_format: str = "auto") -> Any:
    """A rank's part."""
    return load_model(
        folder, load_format=load_format, device="cpu", dtype=torch.float32, ranks=rank
    )


@pytest.mark.parametrize(
    ("ranks", "shape"),
    [
        (1, {}),
        (2, {}),
        (2, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        (4, {"num_key_value_heads": 2}),
        (4, {"num_key_value_heads": 4, "vocab_size": 99}),
        (2, {"model_type": "qwen2"}),
        (4, {"model_type": "qwen2", "num_key_value_heads": 2}),
        (2, {"model_type": "qwen3"}),
        (3, {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 6}),
    ],
)
def test_the_parts_compute_what_the_whole_does(
    ranks: int, shape: dict[str, Any], tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model", **shape)
    whole = plain_logits(plain_model(folder), TOKENS)

    def work(rank: ThreadRank) -> tuple[torch.Tensor, int]:
        return plain_logits(part_of(folder, rank), TOKENS), rank.sums

    found = on_each_rank(ranks, work)
    for logits, sums in found:
        assert logits.shape == (len(TOKENS), shape.get("vocab_size", VOCAB))
        torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)
        assert torch.equal(logits, found[0][0])  # the same bits, so the same token
        assert sums == 1 + 2 * 2  # the embedding, and twice in each of two layers


@pytest.mark.parametrize("shape", [{}, {"model_type": "qwen2", "tie_word_embeddings": True}])
def test_what_follows_a_sum_may_be_done_with_it(shape: dict[str, Any], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", **shape)
    whole = plain_logits(plain_model(folder), TOKENS)

    def work(rank: ThreadRank) -> tuple[torch.Tensor, int]:
        return plain_logits(part_of(folder, rank), TOKENS), rank.sums

    apart, at_once = (on_each_rank(2, work, at_once=each) for each in (False, True))
    for (logits, sums), (other, _) in zip(at_once, apart, strict=True):
        torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits, other, atol=1e-6, rtol=1e-6)
        assert torch.equal(logits, at_once[0][0])
        assert sums == 1 + 2 * 2


def test_random_weights_are_parts_of_those_of_the_whole(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    model = load_model(folder, load_format="dummy", device="cpu", dtype=torch.float32)
    parts = on_each_rank(2, lambda rank: plain_logits(part_of(folder, rank, "dummy"), TOKENS))
    torch.testing.assert_close(parts[1], plain_logits(model, TOKENS), atol=1e-5, rtol=1e-5)


def test_a_rank_reads_its_part_alone_and_norms_are_whole(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", num_key_value_heads=1)
    whole = dict(plain_model(folder).named_parameters())
    first, second = on_each_rank(2, lambda rank: dict(part_of(folder, rank).named_parameters()))
    assert list(first) == list(whole)
    name = "layers.0.self_attn.qkv_proj.weight"
    query, key_value = whole[name].split([32, 16])
    assert torch.equal(second[name], torch.cat([query[16:], key_value]))
    assert torch.equal(
        first["layers.0.self_attn.o_proj.weight"], whole["layers.0.self_attn.o_proj.weight"][:, :16]
    )
    gate, up = whole["layers.1.mlp.gate_up_proj.weight"].chunk(2)
    assert torch.equal(second["layers.1.mlp.gate_up_proj.weight"], torch.cat([gate[24:], up[24:]]))
    assert torch.equal(second["norm.weight"], whole["norm.weight"])
    assert torch.equal(second["lm_head.weight"][:48], whole["lm_head.weight"][49:])
    assert second["lm_head.weight"].shape[0] == 49
    assert not second["lm_head.weight"][48:].any()


def test_no_rows_have_no_logits(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (logits,) = on_each_rank(
        1, lambda rank: part_of(folder, rank).compute_logits(torch.zeros(0, 32))
    )
    assert logits.shape == (0, VOCAB)
