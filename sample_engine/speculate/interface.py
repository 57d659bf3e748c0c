"""The interface of speculators, and what they draft from.

``speculate.registry`` lists them. All tensors are on the engine's device; nothing here waits for
it. What is drafted, and what becomes of it, are values of ``batch.draft_tensors``.

Shapes, in this file and in all speculators::

    R   requests of a step; R' >= R where a graph pads
    T'  tokens of a step, packed and padded
    N   rows that are sampled: of each request that samples its last known token and its drafts
    S   requests that may run at once
    L   the longest text
    k   num_speculative_tokens
    V   tokens of the vocabulary
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from sample_engine.attention.interface import CommonAttentionMetadata, LayerCache
from sample_engine.batch.draft_tensors import Drafts, RequestSampling

if TYPE_CHECKING:  # they import this module
    from sample_engine.graphs.descriptor import BatchExecutionDescriptor
    from sample_engine.graphs.model_graphs import ModelGraphs
    from sample_engine.graphs.state import AttentionStatePair

__all__ = ["Speculator", "SpeculatorState"]


@dataclasses.dataclass(frozen=True)
class SpeculatorState:
    """What a speculator drafts from at the end of a step. Valid until the next one.

    Row ``rows[r]`` of ``texts`` holds the text of request ``r``: the whole prompt from the first
    step on, and all tokens that are certain, this step's included. Its length is ``lengths[r]``; in
    the middle of a prompt (``num_sampled`` is 0) it is what has been computed so far, and nothing
    is to be drafted. What is behind the text is of no account.
    """

    texts: torch.Tensor  # [S + 1, L + 1] int64; the last row and column are for padding
    rows: torch.Tensor  # [R'] int64
    lengths: torch.Tensor  # [R'] int64
    num_sampled: torch.Tensor  # [R'] int64, of Verdict
    sampling: RequestSampling | None  # None: all greedy
    # What the model computed, for speculators with ``aux_layers``.
    positions: torch.Tensor  # [T'] int64
    token_rows: torch.Tensor  # [T'] int64: rows[r] of the request of each token
    num_drafts: torch.Tensor  # [R'] int64: drafts among a request's tokens, at their end
    aux: Sequence[torch.Tensor]  # [T', hidden size] of each of aux_layers
    common: CommonAttentionMetadata
    samples: bool  # whether anything was sampled in this step
    desc: BatchExecutionDescriptor | None = None  # how the model's pass was run


class Speculator(abc.ABC):
    """Guesses tokens. One per engine; it is made by ``registry.make_speculator``."""

    name: ClassVar[str]
    aux_layers: Sequence[int] = ()  # the layers of the model whose features it wants
    lookahead: int = 0  # so many tokens beyond those of a step it keeps keys and values for
    # Whether what it keeps of a token depends on the token after it, too.
    sees_next_token: bool = False
    draws: bool = False  # whether its drafts are drawn: ``Drafts.probs`` is there unless all greedy
    bytes_per_block: int = 0  # of its own KV cache

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def capture_graphs(
        self,
        model: ModelGraphs,
        attn_states: Mapping[BatchExecutionDescriptor, AttentionStatePair],
    ) -> None:
        """Capture what it runs on the device, after the model's graphs. Nothing, by default."""
        del model, attn_states

    @abc.abstractmethod
    def propose(self, state: SpeculatorState) -> Drafts | None:
        """Draft up to k tokens for each request; None where nothing was sampled in this step.

        Device work only: nothing waits for the device.
        """

    def capturable(
        self, common: CommonAttentionMetadata
    ) -> Callable[[SpeculatorState], Drafts | None]:
        """What does :meth:`propose`'s work in a graph that holds a whole step.

        Whatever the host decides is decided now; ``common`` is a batch of the graph's size whose
        texts are as long as they can be.
        """
        del common
        return self.propose

    def allocate_cache(self, num_blocks: int) -> None:
        """Make its own KV cache of so many blocks; an earlier one is let go."""
        del num_blocks

    @property
    def caches(self) -> Sequence[LayerCache]:
        """Its own KV cache, which shares the model's block tables; none, by default."""
        return ()

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        """The weights that its cache depends on; none, by default."""
        return ()
