"""Training a small model: it learns, and a seed gives the same weights again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sample_engine.model.llama import Llama
from tests.engine.support.model import SMALL, packed_attend
from tools.training import loop
from tools.training import train as train_module
from tools.training.corpus import Corpus, load_corpus
from tools.training.measure import bits_per_byte


def trained(corpus: Corpus, steps: int, **settings: float) -> tuple[Llama, loop.Outcome]:
    """Train a small model on a CPU."""
    seed = int(settings.pop("seed", 0))
    torch.manual_seed(seed)
    model = Llama(SMALL)
    train_module.initialize(model, seed)
    chosen = train_module.ModelSettings(
        window=32,
        batch=4,
        check_tokens=512,
        seed=seed,
        **settings,  # type: ignore[arg-type]
    )
    budget = loop.Budget(seconds=60, steps=steps)
    return model, train_module.train(model, corpus, chosen, budget, lambda: None)


def test_training_learns(library: Path) -> None:
    corpus = load_corpus(library)
    torch.manual_seed(0)
    untrained = Llama(SMALL)
    train_module.initialize(untrained, 0)
    before = bits_per_byte(untrained, corpus.held_out[:512], window=32).value

    model, _ = trained(corpus, 150)

    after = bits_per_byte(model, corpus.held_out[:512], window=32).value
    assert before > 7
    assert after < 3.5


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_seed_gives_the_same_weights_again(library: Path, dropout: float) -> None:
    corpus = load_corpus(library)

    first, same, other = (
        trained(corpus, 6, dropout=dropout, seed=seed)[0].state_dict() for seed in (3, 3, 4)
    )

    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_dropout_is_gone_after_training(library: Path) -> None:
    model, _ = trained(load_corpus(library), 2, dropout=0.5)

    model.train()
    inputs = (torch.arange(6), torch.arange(6), packed_attend([6]))
    assert torch.equal(model(*inputs)[0], model(*inputs)[0])


def test_a_library_without_tests_is_enough(library: Path) -> None:
    for path in (library / "package" / "test").iterdir():
        path.unlink()
    corpus = load_corpus(library)

    _, outcome = trained(corpus, 3)

    assert len(corpus.tests) == 0
    assert outcome.steps == 3
