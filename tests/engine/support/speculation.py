"""A speculator that knows what comes next and errs as often as it is told; texts of code to draft.

What it says depends on the text alone, so it says the same in every batch and after a preemption.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sample_engine.batch.draft_tensors import Drafts
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.engine_core import EngineCore
from sample_engine.speculate.interface import Speculator, SpeculatorState
from tests.engine.support.engine import VOCAB, make_core
from tools.training.corpus import load_corpus

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
EAGLE = {"method": "eagle", "num_speculative_tokens": 3}


class Oracle(Speculator):
    """Drafts up to k tokens of texts that it knows whole; a part of them is wrong."""

    name = "oracle"

    def __init__(
        self, texts: Iterable[Sequence[int]], most: int, share_right: float, lookahead: int = 0
    ) -> None:
        super().__init__(most)
        self.known = [list(text) for text in texts]
        self.share_right = share_right
        self.lookahead = lookahead

    def propose(self, state: SpeculatorState) -> Drafts | None:
        if not state.samples:
            return None
        found, counts = [], []
        for row, length, sampled in zip(
            state.rows.tolist(), state.lengths.tolist(), state.num_sampled.tolist(), strict=True
        ):
            drafts = self._drafts(state.texts[row, :length].tolist()) if sampled else []
            counts.append(len(drafts))
            found.append(drafts + [0] * (self.num_speculative_tokens - len(drafts)))
        return Drafts(torch.tensor(found), torch.tensor(counts))

    def _drafts(self, text: list[int]) -> list[int]:
        whole: list[int] = next((each for each in self.known if each[: len(text)] == text), [])
        rest = whole[len(text) : len(text) + self.num_speculative_tokens]
        chance = zlib.crc32(array("q", text).tobytes())
        drafts = []
        for token in rest[: len(rest) - (chance % 5 == 0)]:  # sometimes fewer than there could be
            chance = zlib.crc32(chance.to_bytes(4, "big"))
            right = chance % 1000 < 1000 * self.share_right
            drafts.append(token if right else chance % VOCAB)
        return drafts


def oracle_core(
    folder: str, prompts: dict[str, list[int]], expected: dict[str, list[int]], **settings: Any
) -> EngineCore:
    """A core that drafts four tokens of what is expected; ``share_right`` of them are right."""
    share_right = settings.pop("share_right")
    method = settings.pop("rejection_sample_method", "probabilistic")
    config = {**NGRAM, "rejection_sample_method": method}
    core = make_core(folder, speculative_config=config, **settings)
    texts = [prompts[name] + expected[name] for name in prompts]
    core.runner.speculator = Oracle(texts, 4, share_right)
    return core


def held_out_prompts(count: int, length: int) -> dict[str, list[int]]:
    """Pieces of library files that the tiny model was not trained on."""
    tokens = load_corpus().held_out
    stride = (len(tokens) - length) // count
    return {f"p{n}": tokens[n * stride : n * stride + length].tolist() for n in range(count)}


def tiny_core(speculative: dict[str, Any] | None, **settings: Any) -> EngineCore:
    """The model that comes with the engine, on the CPU."""
    values = {"block_size": 16, "num_blocks": 400, "max_num_batched_tokens": 512, **settings}
    return make_core("tiny", speculative_config=speculative, **values)


def sampled(seed: int, **changed: Any) -> SamplingParams:
    values: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 24}
    return SamplingParams(**{**values, **changed})
