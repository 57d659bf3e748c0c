"""Which texts speculation is measured on, and how an engine is run on them.

The prompts are pieces of the library files of the Python that runs this which the shipped model was
not trained on (``training.corpus`` says which).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.engine_core import EngineCore
from tools.training.corpus import Windows, load_corpus

NONE = "none"
METHODS: dict[str, dict[str, Any] | None] = {
    NONE: None,
    "ngram k=5": {"method": "ngram", "num_speculative_tokens": 5},
    "eagle k=3": {"method": "eagle", "num_speculative_tokens": 3},
    "eagle k=5": {"method": "eagle", "num_speculative_tokens": 5},
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a generation came to. ``seconds`` and ``decoded``: after the prompts were computed."""

    tokens: dict[str, list[int]]
    decoded: int
    seconds: float
    metrics: Mapping[str, Any]

    @property
    def speed(self) -> float:
        """Decoded tokens per second."""
        return self.decoded / self.seconds


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Pieces of held-out files, as ``training.evaluate`` draws them."""
    rows: list[list[int]] = Windows(load_corpus().held_out, length, seed).next(count).tolist()
    return rows


def make_core(speculative: dict[str, Any] | None, device: str, **settings: Any) -> EngineCore:
    """The shipped model, in this process."""
    values = {"model": "tiny", "device": device, "max_num_batched_tokens": 8192, **settings}
    return EngineCore(EngineConfig(speculative_config=speculative, **values))


def generate(
    core: EngineCore, texts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> Run:
    """Complete all texts together."""
    for number, (text, each) in enumerate(zip(texts, params, strict=True)):
        core.add_request(str(number), text, each)
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(texts))}
    decoded, began = 0, time.perf_counter()
    while core.has_unfinished():
        started = all(tokens.values())
        outputs = core.step()
        for output in outputs:
            tokens[output.request_id] += output.new_token_ids
            if started:
                decoded += len(output.new_token_ids)
        if not started:
            began = time.perf_counter()
    return Run(tokens, decoded, time.perf_counter() - began, core.metrics())
