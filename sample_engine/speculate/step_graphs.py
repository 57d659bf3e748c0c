"""Graphs of all that a step does after the model's pass: logits, verification, texts, drafts.

One graph for each FULL graph of the model: so a step of requests that only decode is two replays,
and between them and the one copy that ends it nothing comes from the host. They are for greedy
requests; a step with others, with the middle of a prompt or with log probabilities goes through the
same functions (``step``) without a graph. What a graph does last is to write the inputs of the next
step, as the device is the first to know how many drafts count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sample_engine.batch.draft_state import DraftState
from sample_engine.batch.input_batch import InputBatch
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult
from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.graphs.state import AttentionState, ForwardFn
from sample_engine.speculate import ops
from sample_engine.speculate.interface import Speculator
from sample_engine.speculate.step import (
    ForwardPassOfStep,
    columns_of,
    read_lines,
    verify_and_draft,
)

__all__ = ["StepGraphs"]

ComputeLogits = Callable[[torch.Tensor], torch.Tensor]


class StepGraphs:
    """What follows the model's FULL graphs, captured for a speculator."""

    def __init__(
        self,
        model: ModelGraphs,
        compute_logits: ComputeLogits,  # [N, C] to [N, V]
        inputs: InputBatch,
        state: DraftState,
        speculator: Speculator,
        max_num_seqs: int,
    ) -> None:
        self._speculator = speculator
        self._k = speculator.num_speculative_tokens
        self.manager = model.manager_of_what_follows()
        on_gpu = state.texts.is_cuda
        columns = 2 * self._k + 2
        self._width = columns  # of what a step leaves: known once one was captured
        numbers = {"dtype": torch.int64}
        self._lines = torch.zeros(max_num_seqs * columns, device=state.texts.device, **numbers)
        self._host = torch.zeros(max_num_seqs * columns, pin_memory=on_gpu, **numbers)
        self._copied = torch.cuda.Event() if on_gpu else None
        self._capture(model, compute_logits, inputs, state)

    @property
    def most_tokens(self) -> int:
        """The tokens that a request has in the step which is written on the device."""
        return self._k + 1

    def run(
        self,
        speculator: Speculator,
        desc: BatchExecutionDescriptor,
        batch: ScheduledBatch,
        inputs: ModelInput,
    ) -> StepResult | None:
        """Replay what follows a FULL graph of the model that was just replayed.

        Afterwards the inputs on the device are those of the step that mostly comes next: see
        :meth:`InputBatch.foresee_drafts`. None: there is no graph of such a step, and nothing was
        done.
        """
        if speculator is not self._speculator or desc not in self.manager:
            return None
        step = inputs.drafts
        if step is None or step.sampling is not None or inputs.sampled_rows is not None:
            return None
        if any(part.request.params.logprobs is not None for part in batch.requests):
            return None
        self.manager.run(desc)
        count = len(batch.requests) * self._width
        self._host[:count].copy_(self._lines[:count], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
            self._copied.synchronize()
        lines = self._host[:count].view(-1, self._width).tolist()
        return read_lines(batch, lines, self._k)

    def _capture(
        self,
        model: ModelGraphs,
        compute_logits: ComputeLogits,
        inputs: InputBatch,
        state: DraftState,
    ) -> None:
        block_size = model.spec.block_size

        def create_forward_fn(
            desc: BatchExecutionDescriptor, warmup: bool
        ) -> tuple[ForwardFn, AttentionState]:
            del warmup  # both passes get metadata of their own
            dummy = model.fill_inputs(desc)
            step = state.fill_with_dummy(desc.num_reqs or 0, desc.num_tokens)
            propose = self._speculator.capturable(dummy.common)
            following = inputs.fields_of_decodes(desc.num_reqs or 0)
            hidden, aux = model.outputs_of(desc)
            passed = ForwardPassOfStep(dummy.positions, dummy.common, aux)

            def run(cg_mode: CUDAGraphMode) -> None:
                del cg_mode
                logits = compute_logits(hidden)
                found = verify_and_draft(logits, step, passed, state, propose, "strict")
                verdict, lengths, drafts = found
                assert drafts is not None, "a step of decodes samples"
                columns = columns_of(verdict, drafts)
                self._width = sum(each.shape[1] for each in columns)
                num_reqs = drafts.token_ids.shape[0]
                lines = self._lines[: num_reqs * self._width].view(num_reqs, self._width)
                torch.cat(columns, dim=1, out=lines)
                ops.write_next_step(state.texts, lengths, drafts, following, block_size)

            # A graph reads memory that the metadata owns, and that is propose's.
            return run, AttentionState({"step": propose}, {})

        self.manager.capture(create_forward_fn, "Capturing graphs of verification and drafts")
