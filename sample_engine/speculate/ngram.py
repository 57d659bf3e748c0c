"""Drafts out of the text itself: what came after the last few tokens when they came before.

The rule: of the text's last ``prompt_lookup_max`` tokens, or fewer but at least
``prompt_lookup_min``, take as many as occur earlier in the text too (there they may overlap the
end); of the places where they do, the last; and draft the ``num_speculative_tokens`` tokens that
follow there, fewer where the text ends before that, as vLLM does. (Of places with a match of the
same length vLLM 0.11's proposer takes the first one; recent text says more about what comes next.)

Here is the rule in numpy, for all texts of a batch at once; ``speculate.kernels`` has it for a GPU.

Shapes::

    R  texts, L  tokens of the longest, k  num_speculative_tokens
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from sample_engine.attention.interface import CommonAttentionMetadata
from sample_engine.batch.draft_tensors import Drafts
from sample_engine.speculate import ops
from sample_engine.speculate.interface import Speculator, SpeculatorState

if TYPE_CHECKING:
    from sample_engine.speculate.registry import SpeculatorParts

__all__ = ["NgramSpeculator", "look_up_ngrams", "make"]

_Ints = npt.NDArray[np.int64]


def look_up_ngrams(
    texts: npt.NDArray[np.integer[Any]],  # [R, L]
    lengths: _Ints,  # [R], at most L; behind them texts may hold anything
    num_speculative_tokens: int,  # k
    prompt_lookup_max: int,
    prompt_lookup_min: int,
) -> tuple[_Ints, _Ints]:  # [R, k], padded with -1; [R]
    """Drafts for each text, and how many they are."""
    num_reqs, size = len(lengths), int(lengths.max(initial=0))
    place = np.arange(num_speculative_tokens)
    if size < 2:
        return np.full((num_reqs, len(place)), -1, np.int64), np.zeros(num_reqs, np.int64)
    texts = texts[:, :size]
    each, last = np.arange(num_reqs)[:, None], lengths - 1
    depth = min(prompt_lookup_max, size - 1)
    suffix = texts[each, np.maximum(last[:, None] - np.arange(depth), 0)]  # backwards
    # By where an earlier occurrence may end: whether it goes on, and how long it is.
    matches = np.arange(size - 1) < last[:, None]
    matched = np.zeros(matches.shape, np.int8 if depth < 128 else np.int64)
    for back in range(depth):
        matches[:, :back] = False
        matches[:, back:] &= texts[:, : size - 1 - back] == suffix[:, back, None]
        matched += matches.view(np.int8)
    end = size - 2 - matched[:, ::-1].argmax(axis=1)  # of the longest, the last
    found = matched.max(axis=1) >= prompt_lookup_min
    counts = np.where(found, np.minimum(last - end, len(place)), 0)
    drafts = texts[each, np.minimum(end[:, None] + 1 + place, size - 1)].astype(np.int64)
    drafts[place >= counts[:, None]] = -1
    return drafts, counts


class NgramSpeculator(Speculator):
    """Looks up n-grams: on a GPU in one kernel, elsewhere in numpy."""

    name = "ngram"

    def __init__(
        self, num_speculative_tokens: int, prompt_lookup_max: int, prompt_lookup_min: int
    ) -> None:
        super().__init__(num_speculative_tokens)
        self._rule = (num_speculative_tokens, prompt_lookup_max, prompt_lookup_min)

    def propose(self, state: SpeculatorState) -> Drafts | None:
        """Drafts that nothing was drawn for: their distribution is one-hot."""
        if not state.samples:
            return None
        if state.texts.device.type == "cpu":
            return self._in_numpy(state)
        return self._on_device(state)

    def capturable(
        self, common: CommonAttentionMetadata
    ) -> Callable[[SpeculatorState], Drafts | None]:
        """On a CPU, too, in operators: numpy cannot be captured."""
        del common
        return self._on_device

    def _on_device(self, state: SpeculatorState) -> Drafts:
        return ops.look_up_ngrams(state, *self._rule)

    def _in_numpy(self, state: SpeculatorState) -> Drafts:
        lengths = torch.where(state.num_sampled > 0, state.lengths, 0).numpy()
        size = int(lengths.max(initial=0))
        texts = state.texts.numpy()[state.rows.numpy(), :size]
        drafts, counts = look_up_ngrams(texts, lengths, *self._rule)
        return Drafts(torch.from_numpy(drafts).clamp_(min=0), torch.from_numpy(counts))


def make(parts: SpeculatorParts) -> NgramSpeculator:
    """The speculator of a configuration. It needs nothing of the model."""
    config = parts.speculative
    return NgramSpeculator(
        config.num_speculative_tokens, config.prompt_lookup_max, config.prompt_lookup_min
    )
