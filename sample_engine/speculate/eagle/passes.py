"""The two kinds of pass of the draft head, apart and with static shapes: each can be captured.

*Prefill*: the head over all tokens of the model's step, for the first draft and to keep keys and
values of what is certain. *Decode*: one token of each request, for each further draft. Both are
device work on their arguments, on weights and on the head's cache alone. What surrounds them
(metadata, which token is drafted) is in ``speculator``.

Shapes::

    R', T'  requests and tokens of a step, with padding
    C, Vd   hidden size, tokens that the head guesses among
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sample_engine.attention.interface import PAD_SLOT_ID, AttentionBackend, LayerCache
from sample_engine.model.eagle_head import EagleHead

__all__ = ["AheadBuffers", "DecodeBuffers", "EaglePasses", "PlaceOfPass", "advance"]


@dataclasses.dataclass(frozen=True)
class DecodeBuffers:
    """What graphs of passes read and write, at addresses that never change; :meth:`cut` to a size.

    ``positions`` are those of the features that the head gets, not of the token with them, which is
    the next one.
    """

    token_ids: torch.Tensor  # [R'] int64, the last drafts
    hidden: torch.Tensor  # [R', C], the head's last hidden states; a pass replaces them
    logits: torch.Tensor  # [R', Vd], written
    positions: torch.Tensor  # [R'] int64
    seq_lens: torch.Tensor  # [R'] int32; 0 where nobody is
    slot_mapping: torch.Tensor  # [R'] int64
    query_start_loc: torch.Tensor  # [R' + 1] int32

    @classmethod
    def make(
        cls,
        max_num_seqs: int,
        hidden_size: int,
        num_guesses: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> DecodeBuffers:
        """Buffers for the largest batch."""
        size = max_num_seqs

        def numbers(kind: torch.dtype, length: int = size) -> torch.Tensor:
            return torch.zeros(length, dtype=kind, device=device)

        return cls(
            token_ids=numbers(torch.int64),
            hidden=torch.zeros((size, hidden_size), dtype=dtype, device=device),
            logits=torch.zeros((size, num_guesses), dtype=dtype, device=device),
            positions=numbers(torch.int64),
            seq_lens=numbers(torch.int32),
            slot_mapping=numbers(torch.int64),
            query_start_loc=numbers(torch.int32, size + 1),
        )

    def store(
        self,
        hidden: torch.Tensor,  # [R', C]
        logits: torch.Tensor,  # [R', Vd]
    ) -> None:
        """Keep what a pass comes to: device work, which may be captured."""
        self.hidden.copy_(hidden)
        self.logits.copy_(logits)

    @property
    def place(self) -> PlaceOfPass:
        """Where the next decode pass is, once :func:`advance` has gone there."""
        return PlaceOfPass(self.positions, self.seq_lens, self.slot_mapping)

    def cut(self, num_reqs: int) -> DecodeBuffers:
        """Views of the first requests."""
        return DecodeBuffers(
            **{
                field.name: getattr(self, field.name)[: num_reqs + (field.name[0] == "q")]
                for field in dataclasses.fields(self)
            }
        )


@dataclasses.dataclass(frozen=True)
class AheadBuffers:
    """Where each further pass of a step is, one row for each: at addresses that never change."""

    positions: torch.Tensor  # [k - 1, S] int64
    seq_lens: torch.Tensor  # [k - 1, S] int32
    slot_mapping: torch.Tensor  # [k - 1, S] int64

    @classmethod
    def make(cls, num_passes: int, max_num_seqs: int, device: torch.device) -> AheadBuffers:
        """Buffers for the largest batch."""
        size = (num_passes, max_num_seqs)
        return cls(
            positions=torch.zeros(size, dtype=torch.int64, device=device),
            seq_lens=torch.zeros(size, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(size, dtype=torch.int64, device=device),
        )

    @property
    def num_passes(self) -> int:
        """How many further passes there are."""
        return int(self.positions.shape[0])

    def of(self, index: int, num_reqs: int) -> PlaceOfPass:
        """Where a pass of so many requests is."""
        return PlaceOfPass(
            self.positions[index, :num_reqs],
            self.seq_lens[index, :num_reqs],
            self.slot_mapping[index, :num_reqs],
        )


@dataclasses.dataclass(frozen=True)
class PlaceOfPass:
    """Where the tokens of a decode pass are."""

    positions: torch.Tensor  # [R'] int64
    seq_lens: torch.Tensor  # [R'] int32; 0 where nobody is
    slot_mapping: torch.Tensor  # [R'] int64


def advance(
    buffers: DecodeBuffers,
    block_table: torch.Tensor,  # [R', max_blocks] int32
    block_size: int,
    max_model_len: int,
) -> None:
    """Go one position further, in place: device work, the same for each decode pass.

    A token without a block of its own, or beyond the longest text, is kept nowhere: its draft is
    never used.
    """
    buffers.positions.add_(1).clamp_(max=max_model_len - 1)
    there = buffers.seq_lens > 0
    buffers.seq_lens.copy_(torch.where(there, buffers.positions + 1, 0))
    index = torch.div(buffers.positions, block_size, rounding_mode="floor").unsqueeze(-1)
    block = block_table.gather(1, index).squeeze(-1)
    slots = block * block_size + buffers.positions % block_size
    buffers.slot_mapping.copy_(torch.where((block > 0) & there, slots, PAD_SLOT_ID))


class EaglePasses:
    """The head, the model's embedding and the head's cache."""

    def __init__(self, head: EagleHead, embed: nn.Embedding, backend: AttentionBackend) -> None:
        self.head = head
        self._embed = embed
        self._backend = backend
        self.cache: LayerCache | None = None  # set before the first pass

    def prefill(
        self,
        next_ids: torch.Tensor,  # [T'] int64, the token after each
        positions: torch.Tensor,  # [T'] int64
        aux: Sequence[torch.Tensor],  # [T', C] each, the model's features
        slot_mapping: torch.Tensor,  # [T'] int64
        last_tokens: torch.Tensor,  # [R'] int64, of the T'
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [R', C], [R', Vd]
        """Run over all tokens of a step; what the last one of each request comes to.

        That is the head's hidden state, and the logits in its dtype.
        """
        fused = self.head.fuse(aux)
        every = self._run(next_ids, fused, positions, slot_mapping, attn_metadata)
        hidden = every.index_select(0, last_tokens)
        return hidden, self.head.narrow_logits(hidden)

    def decode(
        self,
        token_ids: torch.Tensor,  # [R'] int64, the last drafts
        hidden: torch.Tensor,  # [R', C], the head's last hidden states
        place: PlaceOfPass,
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [R', C], [R', Vd]
        """Run over one token of each request; its hidden states and logits, as of ``prefill``."""
        hidden = self._run(token_ids, hidden, place.positions, place.slot_mapping, attn_metadata)
        return hidden, self.head.narrow_logits(hidden)

    def _run(
        self,
        token_ids: torch.Tensor,  # [T] int64
        hidden: torch.Tensor,  # [T, C]
        positions: torch.Tensor,  # [T] int64
        slot_mapping: torch.Tensor,  # [T] int64
        attn_metadata: Any,
    ) -> torch.Tensor:  # [T, C]
        cache = self.cache
        assert cache is not None, "the head has no cache yet"

        def attend(
            _: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            # Zeros in rows of nobody's tokens: in a graph's memory they might be anything.
            return self._backend.write_and_attend(
                query, key, value, cache, slot_mapping, attn_metadata, zeros=True
            )

        result: torch.Tensor = self.head(self._embed(token_ids), hidden, positions, attend)
        return result
