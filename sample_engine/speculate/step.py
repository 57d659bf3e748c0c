"""What a step does after the forward pass where the engine speculates: verify, draft, report.

Everything stays on the device until one copy ends the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sample_engine.batch.draft_state import DraftState
from sample_engine.batch.draft_tensors import Drafts, Verdict
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.scheduled_batch import NOT_FINITE, ScheduledBatch, StepResult
from sample_engine.batch.token_logprobs import logprobs_of
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.speculate.interface import Speculator, SpeculatorState
from sample_engine.speculate.rejection import verify

__all__ = ["finish_step"]


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
    verdict = verify(logits, step.sampling, state.unverified(step), method)
    state.append(step, verdict)
    drafts = speculator.propose(
        SpeculatorState(
            texts=state.texts,
            rows=step.rows,
            lengths=step.lengths + verdict.num_sampled,
            num_sampled=verdict.num_sampled,
            sampling=step.sampling,
            positions=inputs.positions,
            token_rows=step.token_rows,
            num_drafts=step.num_drafts,
            aux=aux,
            common=inputs.common,
            samples=logits.shape[0] > 0,
            desc=desc,
        )
    )
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
    k = drafts.token_ids.shape[1]
    columns = [verdict.token_ids, drafts.token_ids]
    if drafts.counts is not None:
        columns.append(drafts.counts.unsqueeze(-1))
    lines: list[list[int]] = torch.cat(columns, dim=1).tolist()
    sampled, proposed = [], []
    for part, line in zip(batch.requests, lines, strict=False):  # padded requests are left out
        count = line[-1] if drafts.counts is not None else k
        sampled.append(_certain(line[: k + 1]))
        proposed.append(tuple(line[k + 1 : k + 1 + count]) if part.samples else ())
    return StepResult(tuple(sampled), tuple(proposed), logprobs_of(batch, sampled, logits))


def _certain(line: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a line up to where they end; none is certain after one that is not finite."""
    found = []
    for token in line:
        if token >= 0 or token == NOT_FINITE:
            found.append(token)
        if token < 0:
            break
    return tuple(found)
