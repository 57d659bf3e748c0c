"""A Llama of which each rank holds a part, cut as vLLM and Megatron-LM do.

Query, key and value projections and the first half of the feed-forward part are cut by columns:
each rank computes its own heads. What follows them is cut by rows: each rank's result is a term of
a sum, which all ranks get. So a layer has two sums. The embedding and the output layer are cut by
the vocabulary. Norms are on all ranks.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.

Shapes as in ``llama``, and::

    P  ranks
    V  tokens of the vocabulary; V' of one rank, those that fill up included
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from sample_engine.model import ops
from sample_engine.model.config import LlamaConfig
from sample_engine.model.llama import Embedding, Linear, Llama, RMSNorm
from sample_engine.model.shards import Shard, config_of_shard

__all__ = ["Collectives", "ParallelLlama"]


class Collectives(Protocol):
    """What the ranks compute together; ``parallel.group.RankGroup`` is one."""

    rank: int
    size: int

    def all_reduce(self, tensor: Tensor, /) -> Tensor:
        """The sum of all ranks' tensors; may overwrite its argument."""

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        """All ranks' tensors, along a new first dimension."""

    def sum_and_norm(
        self,
        term: Tensor,  # [T, C], this rank's
        residual: Tensor | None,  # [T, C]
        norm: tuple[Tensor, float] | None,  # weight [C] and epsilon
        /,
    ) -> tuple[Tensor, Tensor] | None:  # [T, C], [T, C]
        """``residual`` and the sum over ranks, and that normed, at once; None: not here.

        Without ``norm`` it is twice the same. Each rank gets the same bits, or None.
        """


class _RowParallel(Linear):
    """A linear layer whose inputs are spread over the ranks; all of them get its result."""

    def __init__(self, in_size: int, out_size: int, ranks: Collectives) -> None:
        super().__init__(in_size, out_size)
        self._ranks = ranks

    def forward(
        self,
        x: Tensor,  # [T, in], this rank's
    ) -> Tensor:
        """Return ``[T, out]``."""
        return self._ranks.all_reduce(ops.linear(x, self.weight))

    def added_to(
        self,
        residual: Tensor,  # [T, out]
        x: Tensor,  # [T, in], this rank's
    ) -> Tensor:
        """Return ``residual + self(x)``: added once, after the ranks' results are."""
        return self(x) + residual

    def added_and_normed(
        self,
        residual: Tensor,  # [T, out]
        x: Tensor,  # [T, in], this rank's
        norm: RMSNorm,
    ) -> tuple[Tensor, Tensor]:  # [T, out], [T, out]
        """Return ``residual + self(x)``, and that normed."""
        term = ops.linear(x, self.weight)
        found = self._ranks.sum_and_norm(term, residual, (norm.weight, norm.eps))
        return norm.of_sum(residual, self._ranks.all_reduce(term)) if found is None else found


class _VocabParallelEmbedding(Embedding):
    """An embedding of which each rank holds the vectors of some tokens."""

    def __init__(self, vocab_size: int, size: int, shard: Shard, ranks: Collectives) -> None:
        super().__init__(shard.rows_of(vocab_size), size)
        self._first = shard.vocabulary_of(vocab_size).start
        self._ranks = ranks

    def forward(
        self,
        input_ids: Tensor,  # [T] int64
    ) -> Tensor:
        """Return ``[T, C]``."""
        return self._ranks.all_reduce(self.term(input_ids))

    def term(
        self,
        input_ids: Tensor,  # [T] int64
    ) -> Tensor:
        """Return this rank's ``[T, C]``: of each token the one that knows it has the vector."""
        rows = input_ids - self._first
        elsewhere = (rows < 0) | (rows >= self.num_embeddings)
        found = F.embedding(rows.masked_fill(elsewhere, 0), self.weight)
        return found.masked_fill_(elsewhere.unsqueeze(-1), 0)


class ParallelLlama(Llama):
    """One rank's part of a Llama. It takes and returns what a whole one does."""

    def __init__(self, config: LlamaConfig, ranks: Collectives) -> None:
        shard = Shard(ranks.rank, ranks.size)
        super().__init__(config_of_shard(config, ranks.size))
        self._ranks = ranks
        size, rows = config.hidden_size, shard.rows_of(config.vocab_size)
        self.embed_tokens = _VocabParallelEmbedding(config.vocab_size, size, shard, ranks)
        if self.lm_head is not None:
            self.lm_head = Linear(size, rows)
        for layer in self.layers:
            attention, mlp = layer.self_attn, layer.mlp
            attention.o_proj = _RowParallel(attention.o_proj.in_features, size, ranks)
            mlp.down_proj = _RowParallel(mlp.down_proj.in_features, size, ranks)

    def embedded(
        self,
        input_ids: Tensor,  # [T] int64
    ) -> tuple[Tensor, Tensor]:  # [T, C], [T, C]
        """Return the residual stream before the first layer, and that by the layer's norm."""
        norm, term = self.norm_after(-1), self.embed_tokens.term(input_ids)
        found = self._ranks.sum_and_norm(term, None, (norm.weight, norm.eps))
        if found is not None:
            return found
        x = self._ranks.all_reduce(term)
        return x, norm(x)

    def narrow_logits(
        self,
        hidden: Tensor,  # [N, C], normed
    ) -> Tensor:
        """Return the logits ``[N, V]`` in the dtype of the weights: the same bits on all ranks."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        own = ops.linear(hidden, head.weight)  # [N, V']
        if not own.shape[0]:
            return own.new_empty(0, self.config.vocab_size)
        each = self._ranks.all_gather(own)  # [P, N, V']
        joined = each.transpose(0, 1).flatten(1)  # [N, P * V']
        return joined[:, : self.config.vocab_size]
