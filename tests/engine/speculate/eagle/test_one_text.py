"""Drafts of one text on a CPU: those of the ordinary passes, and the same cache behind them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sample_engine.attention.interface import AttentionSpec
from sample_engine.batch.draft_tensors import Drafts
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.engine_core import EngineCore
from sample_engine.model.eagle_head import EagleConfig, EagleHead
from sample_engine.speculate.eagle.one_text import OneText
from sample_engine.speculate.eagle.speculator import EagleSpeculator
from sample_engine.speculate.interface import SpeculatorState
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    config_of,
    generate,
    make_core,
    plain_tokens,
)
from tests.engine.support.speculation import held_out_prompts, tiny_core

EAGLE = {"method": "eagle", "num_speculative_tokens": 4, "rejection_sample_method": "strict"}
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def eagle_of(core: EngineCore) -> EagleSpeculator:
    found = core.runner.speculator
    assert isinstance(found, EagleSpeculator)
    return found


class Compared:
    """Drafts each step of a core by both ways, on the same cache; counts those of one text."""

    def __init__(self, core: EngineCore) -> None:
        self._core, self.eagle = core, eagle_of(core)
        assert self.eagle.one_text is not None
        self.one_text = self.eagle.one_text
        self.steps = 0
        self._both = self.eagle.propose
        self.eagle.propose = self.propose  # type: ignore[method-assign]

    def propose(self, state: SpeculatorState) -> Drafts | None:
        if not self.eagle._is_one_text(state, self.one_text):
            return self._both(state)
        self.steps += 1
        before = [pages.clone() for pages in self.eagle.caches[0]]
        self.eagle.one_text = None
        usual = self._both(state)
        self.eagle.one_text = self.one_text
        certain = state.common.slot_mapping[: len(state.positions) - self._wrong(state)]
        kept = [pages.flatten(0, 1)[certain].clone() for pages in self.eagle.caches[0]]
        for pages, old in zip(self.eagle.caches[0], before, strict=True):
            pages.copy_(old)
        mine = self._both(state)
        assert usual is not None
        assert mine is not None
        for pages, wanted in zip(self.eagle.caches[0], kept, strict=True):
            torch.testing.assert_close(pages.flatten(0, 1)[certain], wanted, atol=1e-5, rtol=1e-5)
        self.compare(state, usual, mine)
        return mine

    def _wrong(self, state: SpeculatorState) -> int:
        return int(state.num_drafts[0] - (state.num_sampled[0] - 1))

    def compare(self, state: SpeculatorState, usual: Drafts, mine: Drafts) -> None:
        rows = self._core.runner.inputs._rows.values()
        request = next(row.request for row in rows if row.index == int(state.rows))
        limits = self._core.scheduler.limits  # further drafts are cut off before they are verified
        room = max(1, limits.most_tokens(request) - int(state.lengths[0]) - 1)
        assert usual.token_ids[:, :room].tolist() == mine.token_ids[:, :room].tolist()
        assert (usual.probs is None) == (mine.probs is None)
        if usual.probs is not None and mine.probs is not None:
            torch.testing.assert_close(usual.probs[:, :room], mine.probs[:, :room])


@BOTH
def test_drafts_and_what_is_kept_are_those_of_the_passes_over_pages(
    folder: str, params: SamplingParams
) -> None:
    core = make_core(folder, attention_backend="sdpa", max_num_seqs=1, speculative_config=EAGLE)
    compared = Compared(core)
    for name, prompt in PROMPTS.items():
        made = generate(core, {name: prompt}, params)
        assert made == {name: plain_tokens(folder, prompt, COUNT, params)}
    assert compared.steps > 80


def test_the_tiny_models_head_drafts_the_same_and_is_often_right() -> None:
    core = tiny_core(EAGLE, attention_backend="sdpa")
    compared = Compared(core)
    generate(core, held_out_prompts(1, 64), SamplingParams(max_tokens=40))
    assert compared.steps > 6
    assert core.metrics()["tokens_per_step"] > 2


@BOTH
@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 15},
        {"max_model_len": 40},
        {"block_size": 1, "num_blocks": 500},
        {"max_num_batched_tokens": 7},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_texts_that_come_and_go_beside_it_get_their_own_tokens(
    folder: str, params: SamplingParams, settings: dict[str, Any]
) -> None:
    """One text is alone for some steps, with others in the rest; blocks are in no order."""
    core = make_core(folder, attention_backend="sdpa", speculative_config=EAGLE, **settings)
    compared = Compared(core)
    tokens: dict[str, list[int]] = {}

    def step() -> None:
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)

    for number in range(2):
        for name in list(PROMPTS)[1::2]:  # the longest is among them
            core.add_request(f"{name} {number}", PROMPTS[name], params)
            for _ in range(7):
                step()
    while core.has_unfinished():
        step()
    assert compared.steps > 20
    longest = settings.get("max_model_len", 128)
    for name, made in tokens.items():
        prompt = PROMPTS[name.split()[0]]
        count = min(COUNT, longest - len(prompt))
        assert made == plain_tokens(folder, prompt, COUNT, params)[:count], name


def test_blocks_that_are_not_in_a_row_are_read_in_their_order(folder: str) -> None:
    core = make_core(folder, attention_backend="sdpa", max_num_seqs=2, speculative_config=EAGLE)
    compared = Compared(core)
    generate(core, {name: PROMPTS[name] for name in ("own-33", "own-15")}, GREEDY)
    assert core.scheduler.kv.pool.num_free > 0
    core.add_request("again", PROMPTS["alike-9"], GREEDY)
    core.step()
    request = core.scheduler.running[0]
    pool = core.scheduler.kv.pool
    pool._blank.extend(reversed([pool._allocate_one() for _ in range(6)][::2]))
    tokens: list[int] = list(request.output_token_ids)
    rows: list[list[int]] = []
    while core.has_unfinished():
        rows.append(list(request.block_ids))
        tokens += [token for output in core.step() for token in output.new_token_ids]
    assert any(ids and ids != list(range(ids[0], ids[0] + len(ids))) for ids in rows), (
        "the blocks are in a row after all"
    )
    assert compared.steps > 2
    assert tokens == plain_tokens(folder, PROMPTS["alike-9"], COUNT)


def test_a_large_vocabulary_is_embedded_token_by_token(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sample_engine.speculate.eagle.one_text._MOST_NUMBERS", 0)
    core = make_core(folder, attention_backend="sdpa", max_num_seqs=1, speculative_config=EAGLE)
    compared = Compared(core)
    made = generate(core, {"text": PROMPTS["own-8"]}, GREEDY)["text"]
    assert made == plain_tokens(folder, PROMPTS["own-8"], COUNT)
    assert compared.steps > 5


def test_the_hash_of_the_model_does_not_depend_on_how_weights_lie(folder: str) -> None:
    from sample_engine.kv_transfer.model_hash import model_hash

    usual, other = (
        make_core(folder, attention_backend=name, speculative_config=EAGLE)
        for name in ("reference", "sdpa")
    )
    assert eagle_of(usual).one_text is None
    assert eagle_of(other).one_text is not None
    assert model_hash(eagle_of(usual).modules) == model_hash(eagle_of(other).modules)


def test_it_serves_float32_on_sdpa_and_plain_heads_alone(folder: str) -> None:
    core = make_core(folder, attention_backend="sdpa", speculative_config=EAGLE)
    eagle = eagle_of(core)
    head, spec = eagle.passes.head, eagle.spec
    assert OneText.serves(head, spec, "sdpa")
    assert not OneText.serves(head, spec, "reference")
    assert not OneText.serves(head, dataclasses.replace(spec, dtype=torch.bfloat16), "sdpa")
    assert not OneText.serves(head, dataclasses.replace(spec, window=8), "sdpa")
    assert not OneText.serves(head, dataclasses.replace(spec, fp8_cache=True), "sdpa")
    for changed in ({"qk_norm": True}, {"qkv_bias": True}, {"rotary_dim": 4}):
        layer = dataclasses.replace(head.config.layer, **changed)
        other = EagleHead(EagleConfig(layer=layer, aux_layers=head.config.aux_layers))
        assert not OneText.serves(other, spec, "sdpa"), changed
    assert isinstance(spec, AttentionSpec)
    assert config_of(folder).attention_backend == "auto"
