"""Graphs of what follows the model's pass where nothing is drafted: logits and a greedy choice.

One graph for each FULL graph of the model: so a step of greedy requests that only decode is two
replays and one copy. A step with others, with the middle of a prompt or with log probabilities goes
without.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.scheduled_batch import NOT_FINITE, ScheduledBatch
from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.graphs.state import AttentionState, ForwardFn
from sample_engine.model import ops

__all__ = ["ChoiceGraphs"]


class ChoiceGraphs:
    """What follows the model's FULL graphs, captured for greedy requests."""

    def __init__(
        self,
        model: ModelGraphs,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],  # [N, C] to [N, V]
    ) -> None:
        self.manager = model.manager_of_what_follows()
        most = max((desc.num_tokens for desc in self.manager.descs), default=0)
        self._found = torch.zeros(2, most, dtype=torch.int64, device=model.spec.device)

        def create_forward_fn(
            desc: BatchExecutionDescriptor, warmup: bool
        ) -> tuple[ForwardFn, AttentionState]:
            del warmup  # nothing is prepared for either pass
            hidden, _ = model.outputs_of(desc)
            found = self._found[:, : desc.num_tokens]

            def run(cg_mode: CUDAGraphMode) -> None:
                del cg_mode
                found.copy_(ops.greedy(compute_logits(hidden), NOT_FINITE))

            return run, AttentionState({}, {})

        self.manager.capture(create_forward_fn, "Capturing graphs of the choice of tokens")

    def run(
        self, desc: BatchExecutionDescriptor, batch: ScheduledBatch, inputs: ModelInput
    ) -> torch.Tensor | None:  # [2, N] int64, until the next call
        """Replay what follows a FULL graph of the model that was just replayed.

        It returns what :func:`ops.greedy` does. None: there is no graph of such a step, and nothing
        was done.
        """
        if desc not in self.manager or inputs.sampled_rows is not None:
            return None
        if inputs.sampling is not None:
            return None
        if any(part.request.params.logprobs is not None for part in batch.requests):
            return None
        self.manager.run(desc)
        return self._found[:, : inputs.num_sampled]
