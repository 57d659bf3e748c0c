"""Drafts of one text on a CPU: the head's passes in few operators.

A pass of a small head takes as long as it has operators. So where one text decodes, all that serves
batches is left out: metadata, padding, and what works out where tokens are kept. Lengths are plain
numbers here, which a CPU has at hand.

What the head keeps of certain tokens goes to the cache's pages, as ``passes`` puts it there: steps
of several texts and cached prefixes go on from it. What it keeps of guesses nobody reads later.
Drafts are those of ``passes`` up to rounding.

Shapes::

    n        tokens of a pass
    C, V     hidden size, vocabulary; Vd of it the head guesses among
    H, K, D  query heads, KV heads, head size
    L        tokens of the text whose keys are there
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_engine.attention.interface import AttentionSpec, LayerCache
from sample_engine.model.eagle_head import EagleHead
from sample_engine.model.llama import RMSNorm
from sample_engine.model.rope import angles_of

__all__ = ["OneText", "TextOfStep"]

_MOST_NUMBERS = 1 << 22  # of a table

# (logits [1, Vd] float32, number of the draft) -> the draft, [1] int64
Draw = Callable[[Tensor, int], Tensor]


@dataclasses.dataclass(frozen=True)
class TextOfStep:
    """The one text of a step, and what has become certain of it."""

    first: int  # the position of the first token of the step
    next_ids: Tensor  # [n] int64: of each certain token of the step the one after it
    aux: Sequence[Tensor]  # [n, C] each: the model's features of them
    slots: Tensor  # [n] int64: where their keys go
    blocks: Sequence[int]  # of the text, in order


class OneText:
    """A head that drafts for one text. It remembers nothing from step to step."""

    @staticmethod
    def serves(head: EagleHead, spec: AttentionSpec, backend: str) -> bool:
        """Whether a head can be run so: in float32 on a CPU, where ``sdpa`` computes likewise."""
        if backend != "sdpa" or spec.dtype != torch.float32:
            return False
        if spec.window is not None or spec.fp8_cache:
            return False
        attention, layer = head.self_attn, head.config.layer
        plain = attention.q_norm is None and attention.qkv_proj.bias is None
        return plain and layer.rotary_dim in (None, layer.head_dim)

    def __init__(
        self, head: EagleHead, embed: nn.Embedding, spec: AttentionSpec, longest: int, k: int
    ) -> None:
        self._head, self._embed, self._spec, self._k = head, embed, spec, k
        self.most_tokens = k + 1  # of a step
        self._longest = longest
        size, layer = head.config.layer.hidden_size, head.config.layer
        for part in head.modules():
            if isinstance(part, nn.Linear):
                _lay_out_for_few_rows(part)
        weight = head.self_attn.qkv_proj.weight
        self._left, self._right = weight[:, :size].t(), weight[:, size:].t()
        self._of_tokens: Tensor | None = None  # [V, columns]: each token's part of the projection
        if embed.num_embeddings * weight.shape[0] <= _MOST_NUMBERS:
            self._of_tokens = head.embed_norm(embed.weight) @ self._left
        cos, sin = angles_of(torch.arange(longest), layer)
        self._cos = torch.cat((cos, cos), dim=-1)  # [longest, 1, D]
        self._sin = torch.cat((-sin, sin), dim=-1)
        # Cut at its end, to n rows and L columns: the last query sees all, each other one less.
        rows, columns = torch.arange(k + 1).unsqueeze(1), torch.arange(longest)
        hidden = columns - (longest - k - 1) > rows
        mask = torch.zeros(hidden.shape, dtype=torch.float32)
        self._mask = mask.masked_fill_(hidden, float("-inf"))

    def propose(self, text: TextOfStep, cache: LayerCache, draw: Draw) -> None:
        """Run prefill and decode passes; ``draw`` gets the logits of each draft."""
        hidden = self._head.fuse(text.aux)
        x, rows = self._prefill(text, hidden, cache)
        x = x[-1:]
        last = text.first + len(text.next_ids) - 1
        room = min(len(rows[0]), self._longest)
        draft = draw(self._logits(x), 0)
        for position in range(last + 1, last + self._k):
            if position >= room:
                return  # a text that is as long as it can be: nobody uses its further drafts
            x = self._decode(draft, x, position, rows)
            draft = draw(self._logits(x), position - last)

    def _prefill(
        self, text: TextOfStep, hidden: Tensor, cache: LayerCache
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # [n, C]; [slots, K, D] twice
        """The pass over what is certain; and keys and values of the text, by position."""
        count = hidden.shape[0]
        length = text.first + count
        query, key, value = self._projected(text.next_ids, hidden, text.first)
        for new, pages in ((key, cache.key), (value, cache.value)):
            pages.view(-1, *pages.shape[2:]).index_copy_(0, text.slots, new)
        rows = (_rows(cache.key, text.blocks), _rows(cache.value, text.blocks))
        mask = self._mask[self.most_tokens - count :, self._longest - length :]
        keys, values = (each[:length].transpose(0, 1).unsqueeze(0) for each in rows)
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=mask,
            scale=self._spec.scale,
            enable_gqa=self._spec.num_heads != self._spec.num_kv_heads,
        )
        return self._after(hidden, mixed.squeeze(0).transpose(0, 1)), rows

    def _decode(
        self, token: Tensor, hidden: Tensor, position: int, rows: tuple[Tensor, Tensor]
    ) -> Tensor:
        """A pass over one guess: token ``[1]``, hidden states ``[1, C]`` before and after."""
        query, key, value = self._projected(token, hidden, position)
        keys, values = rows
        keys[position], values[position] = key[0], value[0]
        length = position + 1
        # The heads that share keys are queries of one head that see the same.
        mixed = F.scaled_dot_product_attention(
            query.reshape(1, self._spec.num_kv_heads, -1, self._spec.head_dim),
            keys[:length].transpose(0, 1).unsqueeze(0),
            values[:length].transpose(0, 1).unsqueeze(0),
            scale=self._spec.scale,
        )
        return self._after(hidden, mixed)

    def _projected(
        self, token_ids: Tensor, hidden: Tensor, first: int
    ) -> tuple[Tensor, Tensor, Tensor]:  # [n, H, D], [n, K, D], [n, K, D]
        """Queries and keys, turned, and values of tokens that follow each other."""
        count = hidden.shape[0]
        if self._of_tokens is not None:
            part = self._of_tokens.index_select(0, token_ids)
        else:
            part = _normed(self._embed(token_ids), self._head.embed_norm) @ self._left
        normed = _normed(hidden, self._head.hidden_norm)
        packed = part.addmm_(normed, self._right).view(count, -1, self._spec.head_dim)
        heads, kv_heads = self._spec.num_heads, self._spec.num_kv_heads
        whole = packed.narrow(1, 0, heads + kv_heads)
        where = slice(first, first + count)
        turned = whole * self._cos[where]
        turned.addcmul_(whole.roll(self._spec.head_dim // 2, -1), self._sin[where])
        query, key = turned.narrow(1, 0, heads), turned.narrow(1, heads, kv_heads)
        return query, key, packed.narrow(1, heads + kv_heads, kv_heads)

    def _after(
        self, hidden: Tensor, mixed: Tensor
    ) -> Tensor:  # [n, C], [n, H, D] of which heads lie together; [n, C]
        """What follows attention."""
        head, count = self._head, hidden.shape[0]
        x = torch.addmm(hidden, mixed.reshape(count, -1), head.self_attn.o_proj.weight.t())
        normed = _normed(x, head.post_attention_layernorm)
        gate, up = (normed @ head.mlp.gate_up_proj.weight.t()).chunk(2, dim=-1)
        return x.addmm_(F.silu(gate).mul_(up), head.mlp.down_proj.weight.t())

    def _logits(self, hidden: Tensor) -> Tensor:  # [1, C]; [1, Vd]
        return _normed(hidden, self._head.norm) @ self._head.lm_head.weight.t()


def _normed(x: Tensor, norm: RMSNorm) -> Tensor:  # [n, C]; [n, C]
    """What ``norm`` makes of float32 numbers without gradients, in half the operators."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = length.square_().mul_(1 / x.shape[-1]).add_(norm.eps).rsqrt_()
    return (x * scale).mul_(norm.weight)


def _rows(pages: Tensor, blocks: Sequence[int]) -> Tensor:  # [B, P, K, D]; [slots, K, D]
    """Keys or values of a text by position: in place, if its blocks are in a row, else copied."""
    first, count = blocks[0], len(blocks)
    if blocks[-1] - first == count - 1 and list(blocks) == list(range(first, first + count)):
        return pages[first : first + count].flatten(0, 1)
    return pages.index_select(0, torch.tensor(blocks)).flatten(0, 1)


def _lay_out_for_few_rows(layer: nn.Linear) -> None:
    """Lay a weight out column by column: products with few rows are twice as fast with it."""
    layer.weight.data = layer.weight.data.t().contiguous().t()
