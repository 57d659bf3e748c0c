"""The draft vocabulary of a head: read from its file, refused where it contradicts itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sample_engine.errors import ConfigError, WeightsError
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.model.loading import load_eagle_head
from tests.engine.support.model import SMALL
from tests.engine.support.weights import cut_head, save

TOKENS = torch.tensor([0, 2, 3, 7, 11])


def load(folder: Path, **given: Any) -> EagleHead:
    return load_eagle_head(str(folder), device="cpu", dtype=torch.float32, **given)


def change(folder: Path, **tensors: Tensor | None) -> Path:
    """Put tensors into a head's file; None takes one out."""
    path = folder / "eagle.safetensors"
    config = {"config": load_config(path)}
    weights: dict[str, Tensor | None] = {**load_file(path), **tensors}
    save_file({n: t for n, t in weights.items() if t is not None}, path, metadata=config)
    return folder


def load_config(path: Path) -> str:
    from sample_engine.model.checkpoint import metadata_of

    return metadata_of(path)["config"]


@pytest.mark.parametrize("t2d", [True, False])
def test_a_head_guesses_among_the_tokens_of_its_file(tmp_path: Path, t2d: bool) -> None:
    folder = save(tmp_path)
    whole = load(folder)
    cut_head(folder, TOKENS, t2d=t2d)
    head = load(folder)
    assert head.config == dataclasses.replace(whole.config, draft_vocab_size=len(TOKENS))
    hidden = torch.randn(3, SMALL.hidden_size, generator=torch.Generator().manual_seed(0))
    logits, among_all = head.compute_logits(hidden), whole.compute_logits(hidden)
    torch.testing.assert_close(logits, among_all[:, TOKENS])
    assert head.token_ids(torch.tensor([4, 0, 3])).tolist() == [11, 0, 7]
    spread = head.over_vocabulary(logits)
    assert spread.shape == among_all.shape
    assert spread[:, TOKENS].equal(logits)
    others = [token for token in range(SMALL.vocab_size) if token not in TOKENS]
    assert bool((spread[:, others] == float("-inf")).all())


def test_a_head_without_one_guesses_among_all(tmp_path: Path) -> None:
    head = load(save(tmp_path))
    logits = torch.randn(2, SMALL.vocab_size)
    assert head.over_vocabulary(logits) is logits
    assert head.token_ids(torch.tensor([5])).tolist() == [5]
    assert head.config.num_guesses == SMALL.vocab_size


def test_the_configuration_survives_its_text() -> None:
    config = dataclasses.replace(EagleConfig.for_target(SMALL), draft_vocab_size=7)
    assert EagleConfig.from_json(config.to_json()) == config
    assert config.num_guesses == 7


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"d2t": None}, r"d2t must be \[5\] of I64 or I32; it is nothing"),
        ({"d2t": torch.zeros(4, dtype=torch.int64)}, r"d2t must be \[5\] .* it is \[4\] of I64"),
        ({"d2t": torch.zeros(5)}, r"it is \[5\] of F32"),
        ({"d2t": torch.tensor([0, 1, 1, 4, 10**6])}, "tokens from 0 to 1000004. Is the head of"),
        ({"d2t": torch.tensor([-1, 1, 1, 4, 7])}, "tokens from -1 to 11"),
        ({"d2t": torch.tensor([0, 1, 0, 4, 7])}, "a token of its own, in ascending order"),
        ({"t2d": torch.zeros(3, dtype=torch.bool)}, r"t2d must be \[\d+\] of BOOL or U8 or I64"),
        (
            {"t2d": torch.ones(SMALL.vocab_size, dtype=torch.bool)},
            "t2d in .* names other tokens than d2t does",
        ),
        ({"more": torch.zeros(3)}, "unexpected: more"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor | None], words: str
) -> None:
    folder = change(cut_head(save(tmp_path), TOKENS), **tensors)
    with pytest.raises(WeightsError, match=words):
        load(folder)


def test_a_vocabulary_beside_a_head_without_one_is_refused(tmp_path: Path) -> None:
    folder = change(save(tmp_path), d2t=torch.zeros(SMALL.vocab_size, dtype=torch.int64))
    with pytest.raises(WeightsError, match="unexpected: d2t"):
        load(folder)


def test_random_weights_get_the_size_that_is_asked_for() -> None:
    head = load_eagle_head(
        "tiny", load_format="dummy", device="cpu", dtype=torch.float32, draft_vocab_size=100
    )
    tokens = head.token_ids(torch.arange(100)).tolist()
    assert tokens == sorted(set(tokens))
    assert (tokens[0], len(tokens)) == (0, 100)
    assert tokens[-1] < head.config.layer.vocab_size <= tokens[-1] + 4
    assert head.lm_head.weight.shape[0] == 100


@pytest.mark.parametrize("size", [0, 10**6])
def test_random_weights_of_an_impossible_size_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"draft_vocab_size={size} must be at least 1 and at"):
        load_eagle_head(
            "tiny", load_format="dummy", device="cpu", dtype=torch.float32, draft_vocab_size=size
        )


def test_a_size_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    folder = cut_head(save(tmp_path), TOKENS)
    assert load(folder, draft_vocab_size=5).config.draft_vocab_size == 5
    with pytest.raises(WeightsError, match=r"draft_vocab_size=6, but .* guesses among 5 tokens"):
        load(folder, draft_vocab_size=6)
