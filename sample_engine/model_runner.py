"""Runs the model on a scheduled batch: inputs, forward pass, sampling or verification of drafts.

It is part of the engine core, and holds all that lives on the device: weights, KV cache, input
buffers. What belongs to one step is passed as arguments; only ``InputBatch`` looks one step ahead,
or, where steps are asynchronous, one step back.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from sample_engine.attention.interface import AttentionSpec, CommonAttentionMetadata
from sample_engine.attention.registry import choose
from sample_engine.batch.draft_state import DraftState
from sample_engine.batch.input_batch import InputBatch
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.request import NULL_BLOCK, Request, RequestStatus
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import (
    NOT_FINITE,
    ScheduledBatch,
    ScheduledRequest,
    StepResult,
)
from sample_engine.batch.step_under_way import StepUnderWay
from sample_engine.batch.token_readout import TokenReadout, TokensUnderWay
from sample_engine.config import CUDAGraphMode, EngineConfig
from sample_engine.device.resolve import resolve
from sample_engine.errors import ConfigError, GraphCaptureError
from sample_engine.graphs.choice_graphs import ChoiceGraphs
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.execution import GraphExecution, execution_for
from sample_engine.graphs.model_graphs import ModelGraphs, allowed_mode
from sample_engine.graphs.piecewise import AttendInto
from sample_engine.kv_cache.memory import allocate_caches, num_blocks_on_cpu, num_blocks_on_gpu
from sample_engine.model import ops
from sample_engine.model.loading import load_model, read_config
from sample_engine.model.shards import config_of_shard
from sample_engine.parallel.place import RankPlace
from sample_engine.sampling import finite_rows, sample
from sample_engine.speculate.interface import Speculator
from sample_engine.speculate.registry import SpeculatorParts, make_speculator
from sample_engine.speculate.step import finish_step
from sample_engine.speculate.step_graphs import StepGraphs

if TYPE_CHECKING:
    from sample_engine.model.llama import Llama
    from sample_engine.parallel.group import RankGroup

__all__ = ["ForwardOutput", "ModelRunner"]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ForwardOutput:
    """What a forward pass leaves."""

    hidden: torch.Tensor  # [T', hidden size], normed
    aux: Sequence[torch.Tensor]  # [T', hidden size] each: the stream after each of aux_layers


class ModelRunner:
    """The model of a configuration, with its KV cache. One step is :meth:`run`."""

    def __init__(
        self,
        config: EngineConfig,
        graph_execution: GraphExecution | None = None,
        place: RankPlace | None = None,
    ) -> None:
        self.config = config
        self.model_config = read_config(config.model)
        resolved = resolve(config, self.model_config, place.rank if place is not None else 0)
        self.device, self.dtype = resolved.device, resolved.dtype
        self.max_model_len = resolved.max_model_len
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # kernels are launched on the current device
        self.ranks = self._ranks(place) if place is not None else None
        own = config_of_shard(self.model_config, self.ranks.size if self.ranks else 1)
        self.spec = AttentionSpec(
            num_heads=own.num_attention_heads,
            num_kv_heads=own.num_key_value_heads,
            head_dim=own.head_dim,
            block_size=config.block_size,
            dtype=self.dtype,
            device=self.device,
            fp8_cache=config.kv_cache_dtype != "auto",
        )
        self._windows = self.model_config.windows_within(self.max_model_len)
        self.backends = {
            window: choose(config.attention_backend, dataclasses.replace(self.spec, window=window))
            for window in dict.fromkeys(self._windows)
        }
        self.cudagraph_mode = config.cudagraph_mode
        for backend in self.backends.values():
            self.cudagraph_mode = allowed_mode(self.cudagraph_mode, backend)
        self._graph_execution = graph_execution
        if self.cudagraph_mode is not CUDAGraphMode.NONE and graph_execution is None:
            self._graph_execution = execution_for(self.device)
        self.graphs: ModelGraphs | None = None  # see capture_graphs
        self.step_graphs: StepGraphs | None = None
        self.choice_graphs: ChoiceGraphs | None = None
        self.model = self._load_model()
        self.speculator, self.draft_state = self._speculator()
        self.inputs = InputBatch(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.max_model_len,
            config.block_size,
            self.device,
            self.draft_state,
        )
        steps = 2 if config.async_scheduling else 1
        self._readout = TokenReadout(config.max_num_seqs, self.device, steps)
        self.num_layers = self.model_config.num_hidden_layers
        self.layer_names = tuple(f"layers.{index}" for index in range(self.num_layers))
        self.num_blocks = self._num_blocks()
        if self.ranks is not None:
            self.num_blocks = self.ranks.least(self.num_blocks)
        self._allocate(self.num_blocks)

    def _ranks(self, place: RankPlace) -> RankGroup:
        from sample_engine.parallel.group import RankGroup

        config = self.config
        ranks = RankGroup(place, self.device)
        most = min(config.max_num_batched_tokens, config.max_num_seqs * self.max_model_len)
        wished = not config.disable_custom_all_reduce
        ranks.share_sums(most, self.model_config.hidden_size, self.dtype, wished=wished)
        return ranks

    def _load_model(self) -> Llama:
        config = self.config
        model = load_model(
            config.model,
            load_format=config.load_format,
            device=self.device,
            dtype=self.dtype,
            seed=config.seed,
            ranks=self.ranks,
        )
        if self.device.type == "cpu":
            model.angles.tabulate(self.max_model_len, self.device)
        return model

    def run(self, batch: ScheduledBatch) -> StepResult:
        """Compute a batch that is not empty. Returns when the tokens are known on the CPU."""
        return self.launch(batch).result()

    def launch(self, batch: ScheduledBatch) -> StepUnderWay:
        """Give the device a batch that is not empty. With drafts it is waited for, too.

        With ``async_scheduling`` the next batch may be launched before the result is asked for; the
        one after it may not.
        """
        with torch.inference_mode():
            return self._launch(batch)

    def _launch(self, batch: ScheduledBatch) -> StepUnderWay:
        desc = self._dispatch(batch)
        captured = self.step_graphs is not None and desc in self.step_graphs.manager
        inputs = self.inputs.prepare(batch, desc.num_reqs or 0, desc.num_tokens, captured=captured)
        output = self._forward_as_dispatched(desc, inputs)
        if self.step_graphs is not None and self.speculator is not None:
            result = self.step_graphs.run(self.speculator, desc, batch, inputs)
            if result is not None:
                self.inputs.foresee_drafts(batch, result, inputs)
                return StepUnderWay(batch, result)
        if self.choice_graphs is not None:
            found = self.choice_graphs.run(desc, batch, inputs)
            if found is not None:
                return StepUnderWay(batch, tokens=self._tokens(batch, inputs, *found))
        logits = self._logits(inputs, output)
        if self.speculator is None or self.draft_state is None:
            tokens = None
            if inputs.num_sampled:
                tokens = self._tokens(batch, inputs, *self._choice(inputs, logits))
            asked = any(part.request.params.logprobs is not None for part in batch.requests)
            return StepUnderWay(batch, tokens=tokens, logits=logits if asked else None)
        result = finish_step(
            batch,
            inputs,
            logits,
            output.aux,
            self.draft_state,
            self.speculator,
            self._rejection_method,
            desc,
        )
        return StepUnderWay(batch, result)

    def build_metadata(self, common: CommonAttentionMetadata) -> dict[str, Any]:
        """The backends' metadata for each layer, by the layer's name.

        Layers of one kind, and mostly all are of one, share one object.
        """
        built = {window: backend.build(common) for window, backend in self.backends.items()}
        return {
            name: built[window]
            for name, window in zip(self.layer_names, self._windows, strict=True)
        }

    def forward(
        self,
        input_ids: torch.Tensor,  # [T'] int64
        positions: torch.Tensor,  # [T'] int64
        slot_mapping: torch.Tensor,  # [T'] int64
        attn_metadata: Mapping[str, Any],
    ) -> ForwardOutput:
        """One pass through the model: device work only, on nothing but its arguments.

        So it may be captured. Keys and values go to the cache, features to the speculator.
        """

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            cache, backend = self.caches[layer], self.backends[self._windows[layer]]
            metadata = attn_metadata[self.layer_names[layer]]
            return backend.write_and_attend(query, key, value, cache, slot_mapping, metadata)

        hidden, aux = self.model(input_ids, positions, attend, self._aux_layers)
        return ForwardOutput(hidden, aux)

    def attention(
        self,
        slot_mapping: torch.Tensor,  # [T'] int64
        attn_metadata: Mapping[str, Any],
    ) -> AttendInto:
        """Attention of a batch for all layers: keys and values go to the cache first."""

        def attend_into(
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            out: torch.Tensor,
        ) -> None:
            cache, backend = self.caches[layer], self.backends[self._windows[layer]]
            backend.write_kv(key, value, cache, slot_mapping)
            backend.forward(query, cache, attn_metadata[self.layer_names[layer]], out)

        return attend_into

    def _logits(self, inputs: ModelInput, output: ForwardOutput) -> torch.Tensor:
        """The logits of the rows that are sampled: [N, vocabulary]."""
        if inputs.sampled_rows is None:
            hidden = output.hidden[: inputs.num_sampled]
        else:
            hidden = output.hidden[inputs.sampled_rows]
        return self.model.compute_logits(hidden)

    def _choice(
        self,
        inputs: ModelInput,
        logits: torch.Tensor,  # [N, V] float32
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [N] int64, [N] int64
        """The tokens that are chosen, and what is told of them: that a row is not finite, or it."""
        if inputs.sampling is None:
            chosen, told = ops.greedy(logits, NOT_FINITE)
            return chosen, told
        chosen = sample(logits, inputs.sampling)
        return chosen, torch.where(finite_rows(logits), chosen, NOT_FINITE)

    def _tokens(
        self,
        batch: ScheduledBatch,
        inputs: ModelInput,
        chosen: torch.Tensor,  # [N] int64
        told: torch.Tensor,  # [N] int64
    ) -> TokensUnderWay:
        """Read tokens; while the device is at work the next step is written, or scheduled even."""
        # The flag of a row travels with its token; the next step's inputs need a real one.
        tokens = self._readout.start(told)
        if self.config.async_scheduling:
            self.inputs.keep_sampled(batch, chosen)
        else:
            self.inputs.foresee(batch, inputs, chosen)
        return tokens

    # Graphs

    def capture_graphs(self) -> None:
        """Capture what the configuration asks for. Before the first step; at most once."""
        if self.cudagraph_mode is CUDAGraphMode.NONE:
            return
        assert self._graph_execution is not None, "set with the mode"
        config, speculative = self.config, self.config.speculative
        drafts = 0 if speculative is None else speculative.num_speculative_tokens
        graphs = ModelGraphs(
            self.cudagraph_mode,
            model=self.model,
            spec=self.spec,
            inputs=self.inputs,
            execution=self._graph_execution,
            max_num_reqs=config.max_num_seqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            aux_layers=self._aux_layers,
            query_lens={1, 1 + drafts},
            sizes=config.cudagraph_capture_sizes,
        )
        states = graphs.capture(self)
        if self.speculator is not None:
            self.speculator.capture_graphs(graphs, states)
        self.graphs = graphs
        if self.ranks is None:  # of several the logits are gathered between: that is not captured
            try:
                self._capture_what_follows(graphs)
            except GraphCaptureError as error:
                _logger.warning(
                    "Sampling, verification and drafts run without a graph of their own, which is "
                    "slower: %s",
                    error,
                )

    def _capture_what_follows(self, graphs: ModelGraphs) -> None:
        """Capture logits and what is done with them, for steps of decodes."""
        # Of greedy requests alone, which the logits' dtype makes no difference to.
        compute_logits, speculative = self.model.narrow_logits, self.config.speculative
        if self.speculator is None or self.draft_state is None or speculative is None:
            self.choice_graphs = ChoiceGraphs(graphs, compute_logits)
        elif speculative.step_graphs:
            self.step_graphs = StepGraphs(
                graphs,
                compute_logits,
                self.inputs,
                self.draft_state,
                self.speculator,
                self.config.max_num_seqs,
            )

    def _dispatch(self, batch: ScheduledBatch) -> BatchExecutionDescriptor:
        counts = [part.count for part in batch.requests]
        if self.graphs is not None:
            return self.graphs.dispatch(counts)
        return BatchExecutionDescriptor(CUDAGraphMode.NONE, sum(counts), len(counts))

    def _forward_as_dispatched(
        self, desc: BatchExecutionDescriptor, inputs: ModelInput
    ) -> ForwardOutput:
        """The forward pass as dispatched."""
        if self.graphs is not None and desc.cg_mode is CUDAGraphMode.FULL:
            return ForwardOutput(*self.graphs.run(desc))
        metadata, slots = self.build_metadata(inputs.common), inputs.common.slot_mapping
        if self.graphs is not None and desc.cg_mode is CUDAGraphMode.PIECEWISE:
            attend = self.attention(slots, metadata)
            return ForwardOutput(*self.graphs.run_pieces(desc, attend))
        return self.forward(inputs.input_ids, inputs.positions, slots, metadata)

    @property
    def _aux_layers(self) -> Sequence[int]:
        return self.speculator.aux_layers if self.speculator is not None else ()

    # Speculation

    def _speculator(self) -> tuple[Speculator | None, DraftState | None]:
        """What drafts, and what it keeps from step to step."""
        config, speculative = self.config, self.config.speculative
        if speculative is None:
            return None, None
        if speculative.method == "eagle" and {*self._windows} != {None}:
            raise ConfigError(
                "speculative_config: method='eagle' drafts for models without a sliding window; "
                "this one has them. Use method='ngram', or a max_model_len that they hold."
            )
        self._rejection_method = speculative.rejection_sample_method
        speculator = make_speculator(
            SpeculatorParts(
                config, speculative, self.model, self.spec, self.device, self.max_model_len
            )
        )
        keeps = speculator.draws and self._rejection_method == "probabilistic"
        state = DraftState(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.max_model_len,
            speculative.num_speculative_tokens,
            self.device,
            drawn_from=self.model_config.vocab_size if keeps else 0,
            lookahead=speculator.lookahead,
        )
        return speculator, state

    # Memory

    def _num_blocks(self) -> int:
        config = self.config
        if config.num_blocks is not None:
            return config.num_blocks
        more = 0 if self.speculator is None else self.speculator.bytes_per_block
        if self.device.type == "cpu":
            return num_blocks_on_cpu(
                self.spec, self.num_layers, self.max_model_len, config.max_num_seqs, more
            )
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.run_largest_step()
        peak = torch.cuda.max_memory_allocated(self.device) - before
        torch.cuda.empty_cache()
        return num_blocks_on_gpu(
            self.spec, self.num_layers, peak, config.gpu_memory_utilization, more
        )

    def _allocate(self, num_blocks: int) -> None:
        """Make the caches, the speculator's too; earlier ones are let go."""
        self.caches = []
        self.caches = allocate_caches(self.spec, self.num_layers, num_blocks)
        if self.speculator is not None:
            self.speculator.allocate_cache(num_blocks)

    def run_largest_step(self) -> None:
        """Run a step of the largest size on a cache of its own, to see what memory it takes."""
        self._allocate(1)
        batch = _largest_batch(self.config, self.max_model_len)
        self.run(batch)
        for part in batch.requests:
            part.request.status = RequestStatus.FINISHED
        self.caches = []


def _largest_batch(config: EngineConfig, max_model_len: int) -> ScheduledBatch:
    """As many requests and tokens as a step may have, all of them in the null block.

    Where the engine speculates each request has as many drafts among them as there can be.
    """
    num_tokens = min(config.max_num_batched_tokens, config.max_num_seqs * max_model_len)
    num_reqs = min(config.max_num_seqs, num_tokens)
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=0)
    most = 0 if config.speculative is None else config.speculative.num_speculative_tokens
    parts = []
    for index in range(num_reqs):
        count = num_tokens // num_reqs + (index < num_tokens % num_reqs)
        drafts = min(most, count - 1)
        request = Request(f"largest-{index}", [0] * (count - drafts), params, 0, -1 - index)
        request.draft_token_ids = [0] * drafts
        request.block_ids = [NULL_BLOCK] * -(-count // config.block_size)
        request.status = RequestStatus.RUNNING
        parts.append(ScheduledRequest(request, 0, count, drafts))
    return ScheduledBatch(tuple(parts))
