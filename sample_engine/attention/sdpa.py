"""The backend for CPUs: torch's own attention over the pages of the cache.

It computes in the model's type, request by request, on the keys that there are and no others:
faster than the reference backend, which stays the oracle, and as exact as the type.

What a batch needs is worked out once (:meth:`SdpaBackend.build`) and serves all layers: on a CPU
the lengths are at hand. Blocks that follow each other are read where they lie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)
from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.kernels.fp8_cache import is_fp8, take_blocks

__all__ = ["SdpaBackend", "SdpaMetadata"]


class _Part(NamedTuple):
    """One request of a batch: the tokens ``first`` to ``last`` are the last of its text."""

    first: int
    last: int
    length: int  # of the text, from where its first query sees it
    start: int  # the slot of the first key, where all keys follow each other; else -1
    blocks: torch.Tensor  # int32: those that hold the keys
    mask: torch.Tensor | None  # [n, length]: what is added to the products; None: see ``causal``
    causal: bool  # each query sees all up to its own position; else it sees all


class SdpaMetadata(NamedTuple):
    """What all layers need to know of a batch."""

    parts: tuple[_Part, ...]  # of the requests with queries
    padded: bool  # whether there are tokens that are nobody's


class SdpaBackend(AttentionBackend):
    """Attention by ``torch.nn.functional.scaled_dot_product_attention``."""

    name = "sdpa"
    why_no_full_graph = "it has shapes that depend on the lengths of the texts"
    has_windows = True
    reads_fp8 = True

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """It is for CPUs: on a GPU it would wait for each length."""
        if spec.device.type == "cpu":
            return None
        return f"it is for CPUs, and the model is on {spec.device}"

    def build(self, common: CommonAttentionMetadata) -> SdpaMetadata:
        """Work out what each request reads."""
        starts, lengths = common.query_start_loc.tolist(), common.seq_lens.tolist()
        parts = []
        for index, length in enumerate(lengths):
            first, last = starts[index], starts[index + 1]
            if first < last and length:
                parts.append(self._part(first, last, length, common.block_table[index]))
        slots = common.slot_mapping
        padded = not parts or parts[-1].last < slots.shape[0] or int(slots.min()) < 0
        return SdpaMetadata(tuple(parts), padded)

    def _part(self, first: int, last: int, length: int, table: torch.Tensor) -> _Part:
        page, window, count = self.spec.block_size, self.spec.window, last - first
        begin = 0  # no query sees what lies before the window of the first one
        if window is not None:
            begin = max(0, length - count + 1 - window) // page * page
        blocks = table[begin // page : -(-length // page)]
        ids = blocks.tolist()
        in_a_row = ids == list(range(ids[0], ids[0] + len(ids)))
        causal = count > 1 and count == length and window is None
        return _Part(
            first=first,
            last=last,
            length=length - begin,
            start=ids[0] * page if in_a_row else -1,
            blocks=blocks,
            mask=None if causal else self._mask(count, length, begin),
            causal=causal,
        )

    def _mask(self, count: int, length: int, begin: int) -> torch.Tensor | None:
        """What is added to the products of each query, [n, L - begin]; None: nothing."""
        window = self.spec.window
        if count == 1 and window is None:
            return None
        columns = torch.arange(begin, length)
        rows = torch.arange(length - count, length)[:, None]
        hidden = columns > rows
        if window is not None:
            hidden |= columns <= rows - window
        mask = torch.zeros(count, length - begin, dtype=self.spec.dtype)
        return mask.masked_fill_(hidden, float("-inf"))

    def write_kv(
        self,
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
    ) -> None:
        """Write keys and values to their slots; those of padded tokens have none."""
        written = slot_mapping >= 0
        if not bool(written.all()):
            key, value, slot_mapping = key[written], value[written], slot_mapping[written]
        _write(key, value, cache, slot_mapping)

    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: SdpaMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """Causal attention, one request after the other."""
        for part in metadata.parts:
            out[part.first : part.last] = self._attend(query[part.first : part.last], cache, part)

    def write_and_attend(
        self,
        query: torch.Tensor,  # [T', H, D]
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
        metadata: SdpaMetadata,
        *,
        zeros: bool = False,
    ) -> torch.Tensor:  # [T', H, D]
        """Both; a batch of one request, and nobody else, needs no further copy."""
        if metadata.padded or len(metadata.parts) > 1:
            rows = (query, key, value)
            return super().write_and_attend(*rows, cache, slot_mapping, metadata, zeros=zeros)
        _write(key, value, cache, slot_mapping)
        return self._attend(query, cache, metadata.parts[0])

    def _attend(
        self,
        query: torch.Tensor,  # [n, H, D]
        cache: LayerCache,
        part: _Part,
    ) -> torch.Tensor:  # [n, H, D]
        num_heads, num_kv_heads = query.shape[1], cache.key.shape[2]
        key, value = (_rows(pages, part, query.dtype) for pages in cache)  # [1, K, L, D]
        if len(query) == 1 and part.mask is None:
            # The heads that share keys are queries of one head that see the same.
            grouped = query.reshape(1, num_kv_heads, -1, query.shape[2])
            mixed = F.scaled_dot_product_attention(grouped, key, value, scale=self.spec.scale)
            return mixed.reshape(query.shape)
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            key,
            value,
            attn_mask=part.mask,
            is_causal=part.causal,
            scale=self.spec.scale,
            enable_gqa=num_heads != num_kv_heads,
        )
        return mixed.squeeze(0).transpose(0, 1)


def _rows(
    pages: torch.Tensor,  # [B, P, K, D]
    part: _Part,
    dtype: torch.dtype,
) -> torch.Tensor:  # [1, K, L, D]
    """Keys or values of a request: where they lie, if they are in a row there, else copied."""
    if part.start < 0 or is_fp8(pages):
        rows = take_blocks(pages, part.blocks).flatten(0, 1)[: part.length]
        return rows.to(dtype).transpose(0, 1).unsqueeze(0)
    _, token, head, number = pages.stride()
    size = (1, pages.shape[2], part.length, pages.shape[3])
    offset = pages.storage_offset() + part.start * token
    return pages.as_strided(size, (0, head, token, number), offset)


def _write(
    key: torch.Tensor,  # [T, K, D]
    value: torch.Tensor,  # [T, K, D]
    cache: LayerCache,
    slots: torch.Tensor,  # [T] int64
) -> None:
    if is_fp8(cache.key):
        oracle.write_kv(key, value, cache.key, cache.value, slots)
        return
    for new, pages in zip((key, value), cache, strict=True):
        pages.view(-1, *pages.shape[2:]).index_copy_(0, slots, new.to(pages.dtype))
