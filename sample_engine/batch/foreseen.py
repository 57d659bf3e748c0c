"""Steps that are written before they are scheduled, and what has to hold for them to be right.

Of a step of decodes most is known before it ends: the same requests go on. Without drafts the CPU
writes the next one while the device works; with drafts, whose number it does not know, the device
does so itself. When the step is scheduled, it is looked at whether it came as foreseen.

Shapes are those of ``input_batch``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from sample_engine.batch.draft_tensors import NextStep, StepDrafts
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult

__all__ = ["Foreseen", "WrittenOnDevice", "next_step_of", "signature_of"]

# Of each request: which it is, where its tokens start, how many they are, and how often it was
# preempted, after which its blocks are others.
Signature = list[tuple[int, int, int, int]]


def signature_of(batch: ScheduledBatch) -> Signature:
    """What a step is written from."""
    return [
        (part.request.arrival, part.start, part.count, part.request.num_preemptions)
        for part in batch.requests
    ]


@dataclasses.dataclass(frozen=True)
class Foreseen:
    """A step without drafts that the CPU has written and started to copy."""

    signature: Signature
    inputs: ModelInput

    @classmethod
    def after(cls, batch: ScheduledBatch, inputs: ModelInput) -> Foreseen:
        """The step in which each request of a batch of decodes has one token more."""
        return cls(
            [(arrival, start + 1, 1, more) for arrival, start, _, more in signature_of(batch)],
            inputs,
        )


@dataclasses.dataclass(frozen=True)
class WrittenOnDevice:
    """A step that the device has written. What the CPU has of it is of another one."""

    signature: Signature
    padded_reqs: int

    @classmethod
    def after(cls, batch: ScheduledBatch, result: StepResult, padded_reqs: int) -> WrittenOnDevice:
        """The step that goes on with what a batch of decodes came to, drafts and all."""
        signature = []
        parts = zip(signature_of(batch), batch.requests, result.sampled, result.drafts, strict=True)
        for (arrival, start, count, more), part, sampled, drafts in parts:
            known = start + count - part.num_drafts + len(sampled)
            signature.append((arrival, known - 1, 1 + len(drafts), more))
        return cls(signature, padded_reqs)


def next_step_of(views: Mapping[str, torch.Tensor], drafts: StepDrafts) -> NextStep:
    """What the device overwrites; both are cut to the largest step that may come."""
    return NextStep(
        rows=drafts.rows,
        samples=drafts.samples,
        block_table=views["block_table"],
        input_ids=views["input_ids"],
        positions=views["positions"],
        slot_mapping=views["slot_mapping"],
        token_rows=drafts.token_rows,
        query_start_loc=views["query_start_loc"],
        seq_lens=views["seq_lens"],
        lengths=drafts.lengths,
        num_drafts=drafts.num_drafts,
        first_rows=drafts.first_rows,
        token_ids=drafts.token_ids,
    )
