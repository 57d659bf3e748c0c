"""Plain generation, against the whole model token by token."""

from __future__ import annotations

import torch

from tests.engine.support.model import packed_attend, random_llama
from tools.training.generate import continued


def test_greedy_text_is_what_the_whole_model_says_token_by_token() -> None:
    model = random_llama()
    prompts = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(2))

    texts = continued(model, prompts, 14, 0.0, torch.Generator())

    assert torch.equal(texts[:, :5], prompts)
    for text in texts:
        hidden, _ = model(text, torch.arange(14), packed_attend([14]))
        assert torch.equal(model.compute_logits(hidden).argmax(-1)[4:13], text[5:])


def test_sampled_text_depends_on_the_seed() -> None:
    model, prompts = random_llama(), torch.tensor([[1, 2, 3]])

    first, same, other = (
        continued(model, prompts, 20, 1.0, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )

    assert torch.equal(first, same)
    assert not torch.equal(first, other)
