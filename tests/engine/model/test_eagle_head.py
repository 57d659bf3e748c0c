"""Tests of the draft head: steps as training unrolls them and as drafting does, and the loss."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sample_engine.model.config import LlamaConfig, RopeScaling
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.model.llama import Llama
from tests.engine.support.model import SMALL, packed_attend, random_llama
from tools.training.acceptance import acceptances, walk
from tools.training.generate import continued
from tools.training.unroll import Guesses, draft_loss, expected_tokens, guess

CONFIG = EagleConfig.for_target(SMALL, intermediate_size=32)


def random_head(seed: int = 0) -> EagleHead:
    head = EagleHead(CONFIG)
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        parameter.data = noise * scale + (parameter.dim() == 1)
    return head


class SlotCache:
    """A cache of one layer with a slot for each position; later values overwrite earlier ones."""

    def __init__(self, slots: int) -> None:
        self.keys = torch.zeros(slots, 2, 8)
        self.values = torch.zeros(slots, 2, 8)
        self.positions = torch.empty(0, dtype=torch.int64)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert layer == 0
        self.keys[self.positions], self.values[self.positions] = k, v
        out = []
        for query, position in zip(q, self.positions.tolist(), strict=True):
            keys = self.keys[: position + 1].repeat_interleave(3, 1)
            values = self.values[: position + 1].repeat_interleave(3, 1)
            weights = (torch.einsum("hd,khd->hk", query, keys) / 8**0.5).softmax(-1)
            out.append(torch.einsum("hk,khd->hd", weights, values))
        return torch.stack(out)


@torch.no_grad()  # type: ignore[untyped-decorator]
def drafted_logits(
    head: EagleHead, model: Llama, tokens: Tensor, anchor: int, steps: int
) -> Tensor:
    """Return the logits of a draft chain, as an engine computes it: with a cache, from the front.

    Its guesses are taken to be the tokens that are there; before the anchor, it drafted already at
    every token and left keys and values of wrong guesses behind.
    """
    length = len(tokens)
    _, aux = model(tokens, torch.arange(length), packed_attend([length]), head.config.aux_layers)
    fused, embeddings = head.fuse(aux), model.embed_tokens(tokens)
    cache = SlotCache(length + steps)
    for position in range(anchor + 1):
        cache.positions = torch.tensor([position])
        hidden = head(
            embeddings[position + 1][None], fused[position][None], cache.positions, cache.attend
        )
        logits = [head.compute_logits(hidden)]
        following = tokens if position == anchor else (tokens + 7) % 256
        for step in range(1, steps):
            cache.positions = torch.tensor([position + step])
            embedding = model.embed_tokens(following[position + 1 + step].clamp(max=256))[None]
            hidden = head(embedding, hidden, cache.positions, cache.attend)
            logits.append(head.compute_logits(hidden))
    return torch.cat(logits)


@pytest.mark.parametrize("anchor", [0, 1, 6])
def test_unrolled_guesses_are_those_of_a_draft_chain_with_a_cache(anchor: int) -> None:
    head, model, steps = random_head(), random_llama(), 4
    windows = torch.randint(256, (2, 11), generator=torch.Generator().manual_seed(3))

    with torch.no_grad():
        guesses = guess(head, model, windows, steps)

    for row, window in enumerate(windows):
        unrolled = torch.stack([logits[row, anchor] for logits in guesses.head])
        drafted = drafted_logits(head, model, window, anchor, steps)
        torch.testing.assert_close(unrolled, drafted, atol=1e-5, rtol=1e-4)


def test_many_tokens_at_once_come_out_as_one_by_one() -> None:
    head, model = random_head(), random_llama()
    tokens = torch.arange(50, 61)
    with torch.no_grad():
        _, aux = model(tokens, torch.arange(11), packed_attend([11]), CONFIG.aux_layers)
        inputs = model.embed_tokens(tokens[1:]), head.fuse([feature[:-1] for feature in aux])
        whole = head(*inputs, torch.arange(10), packed_attend([10]))
        cache, single = SlotCache(10), []
        for position in range(10):
            cache.positions = torch.tensor([position])
            rows = (part[position][None] for part in inputs)
            single.append(head(*rows, cache.positions, cache.attend))

    torch.testing.assert_close(torch.cat(single), whole, atol=1e-5, rtol=1e-4)


def test_the_model_is_compared_at_the_token_that_is_guessed() -> None:
    head, model = random_head(), random_llama()
    windows = torch.randint(256, (1, 9), generator=torch.Generator().manual_seed(4))

    guesses = guess(head, model, windows, 3)

    hidden, _ = model(windows[0], torch.arange(9), packed_attend([9]))
    logits = model.compute_logits(hidden)
    for step in range(3):
        said, guessed = guesses.pair(step)
        assert said.shape == guessed.shape == (1, 6, 257)
        # Anchor 2 guesses token 4 first, which the model says at token 3.
        torch.testing.assert_close(said[0, 2], logits[3 + step], atol=1e-5, rtol=1e-4)


def test_gradients_reach_all_of_the_head_and_nothing_of_the_model() -> None:
    head, model = random_head(), random_llama().requires_grad_(True)
    windows = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(5))

    draft_loss(guess(head, model, windows, 3), 0.9, 1.0).backward()

    assert all(parameter.grad is None for parameter in model.parameters())
    empty = [
        name
        for name, parameter in head.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert empty == []


def test_a_head_that_agrees_costs_the_entropy_and_is_never_refused() -> None:
    logits = torch.randn(2, 9, 257, generator=torch.Generator().manual_seed(6))
    same = Guesses(logits, [logits[:, 1:7], logits[:, 2:8]])
    flat = Guesses(logits, [torch.zeros(2, 6, 257)] * 2)

    distribution = torch.distributions.Categorical(logits=logits)
    entropy = sum(distribution.entropy()[:, 1 + step : 7 + step].mean() for step in range(2))

    torch.testing.assert_close(draft_loss(same, 1.0, 5.0), torch.as_tensor(entropy))
    assert draft_loss(flat, 1.0, 0.0) > draft_loss(same, 1.0, 0.0)
    assert draft_loss(flat, 1.0, 1.0) > draft_loss(flat, 1.0, 0.0) + 0.1
    assert draft_loss(flat, 0.5, 1.0) < draft_loss(flat, 1.0, 1.0)


@pytest.mark.parametrize(("rate", "tokens"), [(1.0, 4.0), (0.0, 1.0), (0.5, 1.875)])
def test_expected_tokens_follow_from_the_acceptance(rate: float, tokens: float) -> None:
    guesses = Guesses(torch.zeros(1, 9, 5), [torch.zeros(1, 6, 5)] * 3)

    found = expected_tokens(guesses, lambda said, _: torch.full_like(said[..., 0], rate))

    assert found == pytest.approx(tokens)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    length=st.integers(8, 40),
    prompt=st.integers(1, 5),
    drafts=st.integers(1, 3),
)
def test_a_walk_counts_what_a_plain_simulation_counts(
    data: st.DataObject, length: int, prompt: int, drafts: int
) -> None:
    flips = st.lists(st.booleans(), min_size=3, max_size=3)
    rows = data.draw(st.lists(flips, min_size=length, max_size=length))

    found = walk(torch.tensor([rows]), [length], prompt, drafts)

    lengths, newest = [], prompt
    while newest + 3 < length:
        good = [*rows[newest - 1][:drafts], False]
        lengths.append(good.index(False) + 1)
        newest += lengths[-1]
    assert found.tokens_per_step == pytest.approx(sum(lengths) / max(1, len(lengths)))
    if lengths:
        product, total = 1.0, 1.0
        for rate in found.by_position:
            product *= rate
            total += product
        assert total == pytest.approx(found.tokens_per_step)


def test_a_perfect_and_a_hopeless_head_are_recognized() -> None:
    assert walk(torch.ones(2, 50, 4).bool(), [50, 30], 3, 4).tokens_per_step == 5
    assert walk(torch.zeros(2, 50, 4).bool(), [50, 30], 3, 4).tokens_per_step == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_agrees_with_drafting_one_text_step_by_step(temperature: float) -> None:
    head, model = random_head(), random_llama()
    prompts = torch.randint(256, (3, 4), generator=torch.Generator().manual_seed(7))
    draws = torch.Generator().manual_seed(8)
    texts = continued(model, prompts, 24, temperature, draws)

    found = acceptances(head, model, texts, 4, temperature, draws, max_steps=3)

    assert set(found) == {1, 2, 3}
    assert all(1 <= rate.tokens_per_step <= drafts + 1 for drafts, rate in found.items())
    if temperature == 0:
        accepted = torch.zeros(3, 21, 3, dtype=torch.bool)
        for row, text in enumerate(texts):
            for anchor in range(3, 21):
                favourites = drafted_logits(head, model, text, anchor, 3).argmax(-1)
                following = text[anchor + 2 : anchor + 5]
                accepted[row, anchor, : len(following)] = favourites[: len(following)] == following
        assert found[3] == walk(accepted, [24] * 3, 4, 3)


def test_a_head_that_is_the_model_is_always_accepted() -> None:
    """Sampling: ``min(1, head / model)`` is one where both are the same."""
    model = random_llama()

    class Echo(EagleHead):
        """Says what the model says; it knows what will come."""

        said: Tensor

        def fuse(self, aux: object) -> Tensor:
            return torch.zeros(self.anchors, 24)

        def forward(self, *_: object) -> Tensor:
            self.step += 1
            return self.said[:, self.step : self.step + self.anchors].flatten(0, 1)

        def compute_logits(self, hidden: Tensor) -> Tensor:
            return hidden

    head = Echo(CONFIG)
    texts = continued(model, torch.tensor([[1, 2, 3]]), 20, 1.0, torch.Generator().manual_seed(0))
    hidden, _ = model(texts[0], torch.arange(20), packed_attend([20]))
    head.said, head.anchors, head.step = model.compute_logits(hidden)[None], 17, 0

    rates = acceptances(head, model, texts, 3, 1.0, torch.Generator().manual_seed(0), max_steps=3)

    # The attentions differ in how they round, so a guess may be refused once in a million.
    assert rates[3].tokens_per_step == 4


def test_the_configuration_survives_its_text() -> None:
    assert EagleConfig.from_json(CONFIG.to_json()) == CONFIG


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_so_do_scalings_ends_and_numbers_that_look_whole(kind: str) -> None:
    scaling = RopeScaling(kind=kind, factor=4, original_max_position_embeddings=32)
    layer = dataclasses.replace(
        SMALL, rope_scaling=scaling, rope_theta=10**22, eos_token_id=(1, 2), rotary_dim=4
    )
    config = dataclasses.replace(CONFIG, layer=layer, draft_vocab_size=7)
    found = EagleConfig.from_json(config.to_json())

    assert found == config
    assert type(found.layer.rope_theta) is float


ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e300, float("nan"), float("inf"), 2**63, 10**400, "", "8"),
    *([], [0, -1], {}, {"kind": "x", "factor": 2.0}, {"kind": "yarn", "factor": 2.0}),
    *({"kind": "linear", "factor": 0}, {"kind": "linear", "factor": 2.0, "turns": 1}),
)


@pytest.mark.parametrize("field", [None, *(each.name for each in dataclasses.fields(LlamaConfig))])
def test_a_value_of_another_kind_makes_no_configuration_or_a_right_one(field: str | None) -> None:
    for wrong in ODD:
        values = json.loads(CONFIG.to_json())
        if field is None:
            values["layer"] = wrong
        else:
            values["layer"][field] = wrong
        try:
            layer = EagleConfig.from_json(json.dumps(values)).layer
        except ValueError:
            continue
        assert isinstance(layer.rope_theta, float), wrong
        assert dataclasses.replace(layer) == layer
        with torch.device("meta"):
            EagleHead(dataclasses.replace(CONFIG, layer=layer))


def test_what_stands_beside_the_layer_is_looked_at_too() -> None:
    right = json.loads(CONFIG.to_json())
    wrong: list[Any] = [[], 1, None, {}, {"aux_layers": [0]}, {"layer": right["layer"]}]
    wrong += [{**right, "aux_layers": odd} for odd in (*ODD, [], ["1"], [True], "12")]
    sizes: tuple[Any, ...] = (True, "8", 1.5, [], {})
    wrong += [{**right, "draft_vocab_size": odd} for odd in sizes]
    for values in wrong:
        with pytest.raises(ValueError, match=r"\w"):
            EagleConfig.from_json(json.dumps(values))


@pytest.mark.parametrize(
    ("layers", "aux"), [(1, (0, 0, 0)), (2, (1, 1, 1)), (4, (1, 2, 3)), (32, (1, 16, 31))]
)
def test_features_come_from_layers_that_are_there(layers: int, aux: tuple[int, ...]) -> None:
    target = dataclasses.replace(SMALL, num_hidden_layers=layers)

    assert EagleConfig.for_target(target).aux_layers == aux
