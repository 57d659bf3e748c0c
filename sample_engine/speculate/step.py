"""What a step does after the forward pass where the engine speculates: verify, draft, report.

Everything stays on the device until one copy ends the step. ``step_graphs`` captures it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from sample_engine.attention.interface import CommonAttentionMetadata
from sample_engine.batch.draft_state import DraftState
from sample_engine.batch.draft_tensors import Drafts, StepDrafts, Verdict
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.scheduled_batch import NOT_FINITE, ScheduledBatch, StepResult
from sample_engine.batch.token_logprobs import logprobs_of
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.speculate import ops
from sample_engine.speculate.interface import Speculator, SpeculatorState
from sample_engine.speculate.rejection import verify

__all__ = ["ForwardPassOfStep", "columns_of", "finish_step", "read_lines", "verify_and_draft"]


def finish_step(
    batch: ScheduledBatch,
    inputs: ModelInput,
    logits: torch.Tensor,  # [N, V] float32
    aux: Sequence[torch.Tensor],  # [T', hidden size] each
    state: DraftState,
    speculator: Speculator,
    method: str,  # of verification
    desc: BatchExecutionDescriptor | None = None,  # how the forward pass was run
) -> StepResult:
    """Which tokens are certain, and the drafts for the next step. Waits for the device, once."""
    step = inputs.drafts
    assert step is not None, "the inputs were prepared without drafts"
    pass_ = ForwardPassOfStep(inputs.positions, inputs.common, aux, desc)
    verdict, _, drafts = verify_and_draft(logits, step, pass_, state, speculator.propose, method)
    if drafts is None:
        return StepResult(((),) * len(batch.requests), ())
    state.keep(step, drafts)
    return _read_back(batch, verdict, drafts, logits)


def _read_back(
    batch: ScheduledBatch, verdict: Verdict, drafts: Drafts, logits: torch.Tensor
) -> StepResult:
    """The step's outcome as plain numbers: the one copy from the device.

    Where a request asks for logprobs there are more.
    """
    lines: list[list[int]] = torch.cat(columns_of(verdict, drafts), dim=1).tolist()
    result = read_lines(batch, lines, drafts.token_ids.shape[1])
    return dataclasses.replace(result, logprobs=logprobs_of(batch, result.sampled, logits))


@dataclasses.dataclass(frozen=True)
class ForwardPassOfStep:
    """What the model's pass of a step read and left."""

    positions: torch.Tensor  # [T'] int64
    common: CommonAttentionMetadata
    aux: Sequence[torch.Tensor]  # [T', hidden size] each
    desc: BatchExecutionDescriptor | None = None  # how it was run


def verify_and_draft(
    logits: torch.Tensor,  # [N, V] float32, or as they are if all requests are greedy
    step: StepDrafts,
    model: ForwardPassOfStep,
    state: DraftState,
    propose: Callable[[SpeculatorState], Drafts | None],
    method: str,  # of verification
) -> tuple[Verdict, torch.Tensor, Drafts | None]:
    """Compare, add to the texts what is certain, draft: device work alone, which may be captured.

    It returns the lengths of the texts, too: [R'] int64. None: nothing was sampled.
    """
    verdict = verify(logits, step.sampling, state.unverified(step), method)
    lengths = ops.append(state.texts, step, verdict)
    drafts = propose(
        SpeculatorState(
            texts=state.texts,
            rows=step.rows,
            lengths=lengths,
            num_sampled=verdict.num_sampled,
            sampling=step.sampling,
            positions=model.positions,
            token_rows=step.token_rows,
            num_drafts=step.num_drafts,
            aux=model.aux,
            common=model.common,
            samples=logits.shape[0] > 0,
            desc=model.desc,
        )
    )
    return verdict, lengths, drafts


def columns_of(
    verdict: Verdict, drafts: Drafts
) -> list[torch.Tensor]:  # [R', k + 1], [R', k] and, where drafts have counts, [R', 1], int64
    """A step's outcome for the one copy from the device: what is certain, drafts, their number."""
    columns = [verdict.token_ids, drafts.token_ids]
    if drafts.counts is not None:
        columns.append(drafts.counts.unsqueeze(-1))
    return columns


def read_lines(batch: ScheduledBatch, lines: Sequence[list[int]], k: int) -> StepResult:
    """The outcome as plain numbers; lines of padded requests are left out."""
    sampled, proposed = [], []
    for part, line in zip(batch.requests, lines, strict=False):
        count = line[-1] if len(line) > 2 * k + 1 else k
        sampled.append(_certain(line[: k + 1]))
        proposed.append(tuple(line[k + 1 : k + 1 + count]) if part.samples else ())
    return StepResult(tuple(sampled), tuple(proposed))


def _certain(line: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a line up to where they end; none is certain after one that is not finite."""
    found = []
    for token in line:
        if token >= 0 or token == NOT_FINITE:
            found.append(token)
        if token < 0:
            break
    return tuple(found)
