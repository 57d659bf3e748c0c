"""Drafts by a head that reads the model's hidden states, in EAGLE-3's manner.

Here is how the head is driven; its passes are in ``passes``, their graphs in ``cudagraph``, its
layer in ``model.eagle_head``. Which drafts count is decided elsewhere (``speculate.rejection``).

After a step the text has ``n`` tokens, the last of which was just chosen. The head sees at position
``i`` the model's features of token ``i`` and the embedding of token ``i + 1``, so:

- *Prefill* runs over the tokens of the step, each with the one after it: for the last token of a
  chunk that is the prompt's next one, for the last accepted draft the token just chosen. Position
  ``n - 2`` gives the first draft. Tokens behind it were drafts that turned out wrong: what the head
  computes for them is overwritten in the next step, as the model's own keys and values are.
- *Decode* goes on from there, on the head's own hidden states, at ``n - 1`` to ``n + k - 3``. These
  positions are overwritten by the next prefill, too, when the model's features are there. Blocks
  for them are in the scheduler's ``lookahead``.

What the head keeps of a token depends on the token after it. So a block of a common prefix may be
shared only by texts that have the token after the block in common (``sees_next_token``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sample_engine.attention.interface import AttentionSpec, CommonAttentionMetadata, LayerCache
from sample_engine.attention.registry import choose
from sample_engine.batch.draft_tensors import Drafts
from sample_engine.batch.request import NULL_BLOCK
from sample_engine.errors import ConfigError
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.graphs.state import AttentionStatePair
from sample_engine.kv_cache.memory import allocate_caches, bytes_per_block
from sample_engine.model import ops as model_ops
from sample_engine.model.eagle_head import EagleHead
from sample_engine.model.llama import Llama
from sample_engine.model.loading import load_eagle_head
from sample_engine.sampling import SamplingTensors, noise_keys, probabilities, sample
from sample_engine.speculate import ops
from sample_engine.speculate.eagle.cudagraph import DraftHeadGraphs
from sample_engine.speculate.eagle.one_text import OneText, TextOfStep
from sample_engine.speculate.eagle.passes import (
    AheadBuffers,
    DecodeBuffers,
    EaglePasses,
    PlaceOfPass,
)
from sample_engine.speculate.interface import Speculator, SpeculatorState
from sample_engine.speculate.registry import SpeculatorParts

__all__ = ["EagleSpeculator", "make"]

# (number of the further pass, the last drafts [R'] int64) -> logits [R', draft vocabulary]
_Decode = Callable[[int, torch.Tensor], torch.Tensor]


class EagleSpeculator(Speculator):
    """The draft head of a model, with a KV cache of its own that shares the block tables."""

    name = "eagle"
    sees_next_token = True
    draws = True

    def __init__(
        self,
        num_speculative_tokens: int,
        head: EagleHead,
        model: Llama,
        spec: AttentionSpec,
        backend_name: str,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        super().__init__(num_speculative_tokens)
        self.aux_layers = head.config.aux_layers
        self.lookahead = num_speculative_tokens - 1
        self.spec = spec
        self.bytes_per_block = bytes_per_block(spec, 1)
        self.max_model_len = max_model_len
        self.backend = choose(backend_name, spec)
        if num_speculative_tokens > 1 and self.backend.needs_host_lengths:
            raise ConfigError(
                f"speculative_config: the backend {self.backend.description!r} needs to know "
                "lengths on the CPU, which are not known there while 'eagle' drafts: take another "
                "attention_backend, install triton, or set num_speculative_tokens=1."
            )
        if spec.device.type == "cpu":
            head.angles.tabulate(max_model_len, spec.device)
        self.passes = EaglePasses(head, model.embed_tokens, self.backend)
        layer = head.config.layer
        self.buffers = DecodeBuffers.make(
            max_num_seqs, layer.hidden_size, head.config.num_guesses, spec.dtype, spec.device
        )
        self._ahead = AheadBuffers.make(num_speculative_tokens - 1, max_num_seqs, spec.device)
        self.graphs: DraftHeadGraphs | None = None  # see capture_graphs
        self._numbers_cpu = torch.arange(max_num_seqs + 1, dtype=torch.int32)
        self.one_text: OneText | None = None  # what drafts where a step is of one text
        if OneText.serves(head, spec, self.backend.name):
            with torch.inference_mode():
                self.one_text = OneText(
                    head, model.embed_tokens, spec, max_model_len, num_speculative_tokens
                )

    def capture_graphs(
        self,
        model: ModelGraphs,
        attn_states: Mapping[BatchExecutionDescriptor, AttentionStatePair],
    ) -> None:
        """Capture prefill and decode passes."""
        graphs = DraftHeadGraphs(self, model)
        graphs.capture(self, model, attn_states)
        self.graphs = graphs

    def allocate_cache(self, num_blocks: int) -> None:
        """Make the head's cache."""
        self.passes.cache = None
        (self.passes.cache,) = allocate_caches(self.spec, 1, num_blocks)

    @property
    def caches(self) -> Sequence[LayerCache]:
        """The head's cache."""
        assert self.passes.cache is not None, "allocate_cache comes first"
        return (self.passes.cache,)

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        """The head."""
        return (self.passes.head,)

    def propose(self, state: SpeculatorState) -> Drafts | None:
        """Prefill, and k - 1 decode passes if anything was sampled."""
        if self.one_text is not None and self._is_one_text(state, self.one_text):
            return self._of_one_text(state, self.one_text)
        graphs, num_reqs = self.graphs, state.rows.shape[0]
        hidden, logits = self._prefill(state)
        if not state.samples:
            return None
        if graphs is not None and graphs.has_decode(num_reqs):
            buffers = self.buffers.cut(num_reqs)

            def replay(_: int, token_ids: torch.Tensor) -> torch.Tensor:
                buffers.token_ids.copy_(token_ids)
                graphs.run_decode(num_reqs)
                return buffers.logits

            return self._drafts(state, logits, replay)
        further = self._further_passes(state.common)
        return self._drafts(state, logits, self._decoder(hidden, further))

    def _is_one_text(self, state: SpeculatorState, one_text: OneText) -> bool:
        """Whether a step decodes one text, and nothing of it is a graph or padding."""
        num_tokens = state.positions.shape[0]
        alone = state.rows.shape[0] == state.common.num_reqs == 1
        whole = num_tokens == state.common.num_tokens <= one_text.most_tokens
        if not (alone and whole and state.samples and self.graphs is None):
            return False
        return int(state.common.block_table[0, 0]) != NULL_BLOCK  # as it is to measure memory

    def _of_one_text(self, state: SpeculatorState, one_text: OneText) -> Drafts:
        """The drafts of the step's one text. To ask the device for numbers costs nothing here."""
        common, k = state.common, self.num_speculative_tokens
        wrong = int(state.num_drafts) - int(state.num_sampled) + 1
        count = common.num_tokens - wrong
        first = common.max_seq_len - common.num_tokens
        most_blocks = -(-min(first + count + k, self.max_model_len) // self.spec.block_size)
        text = TextOfStep(
            first=first,
            next_ids=state.texts[int(state.rows), first + 1 : first + count + 1],
            aux=[each[:count] for each in state.aux],
            slots=common.slot_mapping[:count],
            blocks=[
                block
                for block in common.block_table[0, :most_blocks].tolist()
                if block != NULL_BLOCK
            ],
        )
        token_ids: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []

        def draw(logits: torch.Tensor, index: int) -> torch.Tensor:
            drafts, distribution = self._drawn(logits, state, index)
            token_ids.append(drafts)
            if distribution is not None:
                probs.append(distribution)
            return drafts

        one_text.propose(text, self.caches[0], draw)
        for drawn in (token_ids, probs):  # what there is no room for
            drawn += drawn[-1:] * (k - len(drawn))
        return Drafts(
            torch.stack(token_ids, dim=1), probs=torch.stack(probs, dim=1) if probs else None
        )

    def capturable(
        self, common: CommonAttentionMetadata
    ) -> Callable[[SpeculatorState], Drafts | None]:
        """:meth:`propose` for a graph: all metadata is made now, of a batch as large as can be."""
        first, further = self.backend.build(common), self._further_passes(common)

        def propose(state: SpeculatorState) -> Drafts:
            next_ids, last_tokens = ops.certain_ends(state)
            self._place_passes(state, last_tokens)
            hidden, logits = self._prefill_eagerly(state, next_ids, last_tokens, first)
            return self._drafts(state, logits, self._decoder(hidden, further))

        return propose

    def _further_passes(self, common: CommonAttentionMetadata) -> list[tuple[PlaceOfPass, Any]]:
        """Where each further pass of a step is, and the backend's metadata of it."""
        num_reqs, of_decodes = common.seq_lens.shape[0], self._common_of_decodes(common)
        places = (self._ahead.of(index, num_reqs) for index in range(self._ahead.num_passes))
        return [(place, self._metadata_of(place, of_decodes)) for place in places]

    def _decoder(
        self,
        hidden: torch.Tensor,  # [R', C], of the prefill pass
        further: Sequence[tuple[PlaceOfPass, Any]],  # of _further_passes
    ) -> _Decode:
        """What runs the further passes, each on the hidden states of the one before."""

        def decode(index: int, token_ids: torch.Tensor) -> torch.Tensor:
            nonlocal hidden
            hidden, logits = self.passes.decode(token_ids, hidden, *further[index])
            return logits

        return decode

    def _drafts(
        self,
        state: SpeculatorState,
        logits: torch.Tensor,  # [R', draft vocabulary], of the prefill pass
        decode: _Decode,
    ) -> Drafts:
        """The drafts of the prefill pass, and of each further one."""
        token_ids: list[torch.Tensor] = []
        probs = []
        for step in range(self.num_speculative_tokens):
            if step:
                logits = decode(step - 1, token_ids[-1])
            drafts, distribution = self._drawn(logits, state, step)
            token_ids.append(drafts)
            probs.append(distribution)
        drawn = [each for each in probs if each is not None]
        return Drafts(
            torch.stack(token_ids, dim=1), probs=torch.stack(drawn, dim=1) if drawn else None
        )

    def _drawn(
        self,
        logits: torch.Tensor,  # [R', draft vocabulary]
        state: SpeculatorState,
        step: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # [R'] int64; [R', V] float32
        """The drafts of a pass, and what they were drawn from unless all requests are greedy.

        They are drawn with the noise that the model's own choice at this position would be drawn
        with.
        """
        head = self.passes.head
        if state.sampling is None:
            return head.token_ids(model_ops.argmax(logits)), None
        how = SamplingTensors(
            temperature=state.sampling.temperature,
            top_k=state.sampling.top_k,
            top_p=state.sampling.top_p,
            keys=noise_keys(state.sampling.seed_keys, state.lengths + step),
            filtered=state.sampling.filtered,
        )
        logits = head.over_vocabulary(logits.float())
        return sample(logits, how), probabilities(logits, how)

    def _prefill(
        self, state: SpeculatorState
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [R', C], [R', draft vocabulary]
        """Work out where all passes are, and run the first."""
        next_ids, last_tokens = ops.certain_ends(state)
        self._place_passes(state, last_tokens)
        buffers = self.buffers.cut(state.rows.shape[0])
        if self.graphs is not None and self.graphs.run_prefill(state.desc, next_ids, last_tokens):
            return buffers.hidden, buffers.logits
        metadata = self.backend.build(state.common)
        hidden, logits = self._prefill_eagerly(state, next_ids, last_tokens, metadata)
        if self.graphs is not None:
            buffers.store(hidden, logits)  # graphs of further passes read them there
        return hidden, logits

    def _prefill_eagerly(
        self,
        state: SpeculatorState,
        next_ids: torch.Tensor,  # [T'] int64
        last_tokens: torch.Tensor,  # [R'] int64
        metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        slots = state.common.slot_mapping
        return self.passes.prefill(
            next_ids, state.positions, state.aux, slots, last_tokens, metadata
        )

    def _place_passes(self, state: SpeculatorState, last_tokens: torch.Tensor) -> None:
        if self.num_speculative_tokens == 1:
            return
        first, ahead = self.buffers.cut(last_tokens.shape[0]), self._ahead
        ops.place_passes(
            state,
            last_tokens,
            self.spec.block_size,
            self.max_model_len,
            (first.positions, first.seq_lens, first.query_start_loc),
            (ahead.positions, ahead.seq_lens, ahead.slot_mapping),
        )

    def decode_metadata(self, place: PlaceOfPass, common: CommonAttentionMetadata) -> Any:
        """The backend's metadata of the next decode pass; the lengths are the device's business."""
        return self._metadata_of(place, self._common_of_decodes(common))

    def _metadata_of(self, place: PlaceOfPass, common: CommonAttentionMetadata) -> Any:
        """The backend's metadata of one decode pass, of which ``common`` says all but the place."""
        lengths, slots = place.seq_lens, place.slot_mapping
        return self.backend.build(dataclasses.replace(common, seq_lens=lengths, slot_mapping=slots))

    def _common_of_decodes(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """What all decode passes of a step have in common; lengths on the CPU are bounds."""
        padded = common.seq_lens.shape[0]
        longest = min(common.max_seq_len + self.num_speculative_tokens, self.max_model_len)
        return dataclasses.replace(
            common,
            query_start_loc=self.buffers.query_start_loc[: padded + 1],
            query_start_loc_cpu=self._numbers_cpu[: padded + 1].clamp(max=common.num_reqs),
            seq_lens_cpu=(common.seq_lens_cpu + self.num_speculative_tokens).clamp(max=longest),
            num_tokens=common.num_reqs,
            max_query_len=1,
            max_seq_len=longest,
        )


def make(parts: SpeculatorParts) -> EagleSpeculator:
    """The speculator of a configuration, with the head that comes with the model."""
    config = parts.config
    head = load_eagle_head(
        config.model,
        load_format=config.load_format,
        device=parts.device,
        dtype=parts.spec.dtype,
        seed=config.seed,
        draft_vocab_size=parts.speculative.draft_vocab_size,
    )
    layer = head.config.layer
    spec = dataclasses.replace(
        parts.spec,
        num_heads=layer.num_attention_heads,
        num_kv_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
    )
    return EagleSpeculator(
        parts.speculative.num_speculative_tokens,
        head,
        parts.model,
        spec,
        config.attention_backend,
        config.max_num_seqs,
        parts.max_model_len,
    )
