"""What speculation keeps on the device from step to step, by request, and the way there.

That is the text of each running request and the distributions that its drafts were drawn from. A
request has the row that ``InputBatch`` gave it.

Shapes are those of ``drafts``; also::

    S   requests that may run at once
    L   the longest text
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import torch

from sample_engine.batch.draft_tensors import (
    Drafts,
    RequestSampling,
    StepDrafts,
    Unverified,
)
from sample_engine.batch.input_buffers import KeptViews, PackedFields
from sample_engine.batch.request import Request
from sample_engine.batch.scheduled_batch import ScheduledBatch
from sample_engine.sampling import seed_keys

__all__ = ["DraftState"]

_LARGEST_FLOAT32 = 3.0e38
_LARGEST_TOP_K = 1 << 31


class DraftState:
    """Texts and distributions by row. What a step needs besides goes over in one copy."""

    def __init__(
        self,
        max_num_seqs: int,
        max_tokens: int,
        max_model_len: int,
        num_drafts: int,
        device: torch.device,
        drawn_from: int = 0,  # V, where drafts are drawn and that is to be known; else 0
        lookahead: int = 0,  # of the speculator
    ) -> None:
        self.num_speculative_tokens = num_drafts
        self.lookahead = lookahead
        self._nobody = max_num_seqs
        self.texts = torch.zeros(
            (max_num_seqs + 1, max_model_len + 1), dtype=torch.int64, device=device
        )
        self.probs: torch.Tensor | None = None  # [S + 1, k, V] float32
        if drawn_from:
            shape = (max_num_seqs + 1, num_drafts, drawn_from)
            self.probs = torch.zeros(shape, dtype=torch.float32, device=device)
        number = (torch.int64, (max_num_seqs,))
        fields: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            **dict.fromkeys(("rows", "lengths", "num_drafts", "first_rows"), number),
            **dict.fromkeys(("top_k", "seed_keys"), number),
            **dict.fromkeys(("temperature", "top_p"), (torch.float32, (max_num_seqs,))),
            "samples": (torch.bool, (max_num_seqs,)),
            "token_ids": (torch.int64, (max_num_seqs, num_drafts)),
            "token_rows": (torch.int64, (max_tokens,)),
        }
        self._fields = PackedFields(fields, device)
        self._views: KeptViews[tuple[int, int], StepDrafts] = KeptViews()

    def give_row(self, row: int, request: Request) -> None:
        """A request has begun, and has this row until it ends."""
        text = torch.tensor(request.token_ids(0, request.num_tokens))
        self.texts[row, : len(text)].copy_(text, non_blocking=True)

    def write(
        self,
        batch: ScheduledBatch,
        rows: Sequence[int],
        padded_reqs: int,
        padded_tokens: int,
    ) -> StepDrafts:
        """Write down a step and start to copy it. The caller waits for the last copy before."""
        self._write_requests(batch, rows, padded_reqs)
        fields, parts = self._fields.numpy, batch.requests
        num_tokens = batch.num_tokens
        owners = np.repeat(np.array(rows), [part.count for part in parts])
        fields["token_rows"][:num_tokens] = owners
        fields["token_rows"][num_tokens:padded_tokens] = self._nobody
        greedy = self._write_sampling(batch)
        self._fields.push()
        sampling = None if greedy else self._sampling(len(parts), padded_reqs)
        views = self.greedy_step(padded_reqs, padded_tokens)
        return views if sampling is None else dataclasses.replace(views, sampling=sampling)

    def fill_with_dummy(self, num_reqs: int, num_tokens: int) -> StepDrafts:
        """Write down a greedy step of nobody's requests, to capture a graph with."""
        self._pad_requests(0, num_reqs)
        self._fields.numpy["token_rows"][:num_tokens] = self._nobody
        self._fields.push()
        return self.greedy_step(num_reqs, num_tokens)

    def greedy_step(self, padded_reqs: int, padded_tokens: int) -> StepDrafts:
        """A greedy step of this size: what :meth:`write` has written, or the device."""

        def cut() -> StepDrafts:
            device = self._fields.device
            return StepDrafts(
                **{
                    name: device[name][:padded_reqs]
                    for name in (
                        "rows", "lengths", "num_drafts", "first_rows", "samples", "token_ids"
                    )
                },
                token_rows=device["token_rows"][:padded_tokens],
                sampling=None,
            )  # fmt: skip

        return self._views.of((padded_reqs, padded_tokens), cut)

    def _write_requests(self, batch: ScheduledBatch, rows: Sequence[int], padded_reqs: int) -> None:
        fields, parts = self._fields.numpy, batch.requests
        count = len(parts)
        num_drafts = [part.num_drafts for part in parts]
        samples = [part.samples for part in parts]
        chosen = [
            drafts + 1 if each else 0 for drafts, each in zip(num_drafts, samples, strict=True)
        ]
        fields["rows"][:count] = rows
        fields["lengths"][:count] = [part.start + part.count - part.num_drafts for part in parts]
        fields["num_drafts"][:count] = num_drafts
        fields["samples"][:count] = samples
        fields["first_rows"][:count] = [0, *itertools.accumulate(chosen)][:-1]
        fields["token_ids"][:count] = -1
        for index, part in enumerate(parts):
            if part.num_drafts:
                fields["token_ids"][index, : part.num_drafts] = part.request.draft_token_ids
        self._pad_requests(count, padded_reqs)

    def _pad_requests(self, count: int, padded_reqs: int) -> None:
        fields, padding = self._fields.numpy, slice(count, padded_reqs)
        fields["rows"][padding] = self._nobody
        for name in ("lengths", "num_drafts", "first_rows"):
            fields[name][padding] = 0
        fields["samples"][padding] = False
        fields["token_ids"][padding] = -1

    def _write_sampling(self, batch: ScheduledBatch) -> bool:
        """How the tokens of each request are chosen; whether all of them greedily."""
        params = [part.request.params for part in batch.requests]
        if all(each.temperature == 0 for each in params):
            return True
        fields, count = self._fields.numpy, len(params)
        fields["temperature"][:count] = [min(p.temperature, _LARGEST_FLOAT32) for p in params]
        fields["top_k"][:count] = [min(p.top_k, _LARGEST_TOP_K) for p in params]
        fields["top_p"][:count] = [p.top_p for p in params]
        seeds = torch.tensor([part.request.seed for part in batch.requests])
        fields["seed_keys"][:count] = seed_keys(seeds).numpy()
        return False

    def _sampling(self, num_reqs: int, padded_reqs: int) -> RequestSampling:
        fields, device = self._fields.numpy, self._fields.device
        filtered = fields["top_k"][:num_reqs].any() or (fields["top_p"][:num_reqs] < 1).any()
        return RequestSampling(
            **{
                name: device[name][:padded_reqs]
                for name in ("temperature", "top_k", "top_p", "seed_keys")
            },
            filtered=bool(filtered),
        )

    def unverified(self, step: StepDrafts) -> Unverified:
        """What is to be verified of a step."""
        probs = None
        if self.probs is not None and step.sampling is not None:
            probs = self.probs[step.rows]
        return Unverified(
            step.token_ids, step.num_drafts, step.first_rows, step.samples, step.lengths, probs
        )

    def keep(self, step: StepDrafts, drafts: Drafts) -> None:
        """Remember what the drafts of the requests that sampled were drawn from."""
        if self.probs is not None and drafts.probs is not None:
            rows = torch.where(step.samples, step.rows, self._nobody)
            self.probs[rows] = drafts.probs
