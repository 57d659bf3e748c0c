"""The backend for CPUs: torch's own attention over the pages of the cache.

It computes in the model's type, request by request, on the keys that there are and no others:
faster than the reference backend, which stays the oracle, and as exact as the type. On a CPU the
lengths of a batch are at hand, so all are read where they are needed: none of them is kept from one
layer or pass to the next.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)

__all__ = ["SdpaBackend"]


class SdpaBackend(AttentionBackend):
    """Attention by ``torch.nn.functional.scaled_dot_product_attention``."""

    name = "sdpa"
    why_no_full_graph = "it has shapes that depend on the lengths of the texts"
    has_windows = True

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """It is for CPUs: on a GPU it would wait for each length."""
        if spec.device.type == "cpu":
            return None
        return f"it is for CPUs, and the model is on {spec.device}"

    def build(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """The batch itself."""
        return common

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
        for new, pages in zip((key, value), cache, strict=True):
            pages.view(-1, *pages.shape[2:]).index_copy_(0, slot_mapping, new.to(pages.dtype))

    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: CommonAttentionMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """Causal attention, one request after the other."""
        starts, lengths = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        for index, length in enumerate(lengths):
            first, last = starts[index], starts[index + 1]
            if first < last and length:
                blocks = metadata.block_table[index]
                out[first:last] = self._attend(query[first:last], cache, blocks, length)

    def _attend(
        self,
        query: torch.Tensor,  # [n, H, D]: the last n of L positions
        cache: LayerCache,
        blocks: torch.Tensor,  # [max_blocks] int32
        length: int,  # L
    ) -> torch.Tensor:  # [n, H, D]
        count, page = query.shape[0], cache.key.shape[1]
        window, begin = self.spec.window, 0
        if window is not None:  # no query sees what lies before that of the first one
            begin = max(0, length - count + 1 - window) // page * page
        wanted = blocks[begin // page : -(-length // page)]
        key, value = (
            each.index_select(0, wanted)
            .flatten(0, 1)[: length - begin]
            .transpose(0, 1)
            .unsqueeze(0)
            for each in cache
        )  # [1, K, L - begin, D]
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            key,
            value,
            attn_mask=self._mask(count, length, begin),
            is_causal=count > 1 and count == length and window is None,
            scale=self.spec.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed.squeeze(0).transpose(0, 1)

    def _mask(self, count: int, length: int, begin: int) -> torch.Tensor | None:
        """Which keys each query sees, [n, L - begin] bool; None: all, or plainly causal."""
        window = self.spec.window
        if window is None and (count == 1 or count == length):
            return None
        columns = torch.arange(begin, length)
        rows = torch.arange(length - count, length)[:, None]
        seen = columns <= rows
        return seen if window is None else seen & (columns > rows - window)
