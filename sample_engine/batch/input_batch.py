"""From a scheduled batch to the tensors of a forward pass.

:class:`InputBatch` remembers the running requests, so that a step costs what is new and not the
length of the texts. What it writes goes to the device in one or two copies.

Shapes::

    R, T  requests and tokens of a step; R' and T' with those that fill it up to a graph's size
    N     rows that are sampled
    S     requests that may run at once
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt
import torch

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.batch.block_tables import BlockTables
from sample_engine.batch.draft_state import DraftState
from sample_engine.batch.draft_tensors import NextStep
from sample_engine.batch.foreseen import Foreseen, WrittenOnDevice, next_step_of, signature_of
from sample_engine.batch.input_buffers import InputBuffers, KeptViews
from sample_engine.batch.model_input import ModelInput, common_of
from sample_engine.batch.request import NULL_BLOCK, Request, RequestStatus
from sample_engine.batch.scheduled_batch import ScheduledBatch, ScheduledRequest, StepResult
from sample_engine.sampling import SamplingTensors, noise_keys, seed_keys

__all__ = ["InputBatch"]

_Ints = npt.NDArray[np.int64]
_LARGEST_FLOAT32 = 3.0e38
_LARGEST_TOP_K = 1 << 31


class _Row:
    """What is remembered of a running request, and what of it is written down already."""

    __slots__ = ("index", "num_known", "num_preemptions", "request")

    def __init__(self, index: int, request: Request) -> None:
        self.index = index
        self.request = request
        self.num_known = 0  # tokens; drafts are not known, they may turn out wrong
        self.num_preemptions = request.num_preemptions


class InputBatch:
    """Prepares steps. Rows of requests that have ended are reused when one is needed."""

    def __init__(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        drafts: DraftState | None = None,
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self._most_tokens = max_num_batched_tokens
        self.buffers = InputBuffers(max_num_seqs, max_num_batched_tokens, max_blocks, device)
        self._tables = BlockTables(max_num_seqs, max_blocks, block_size)
        self._tokens: _Ints = np.zeros((max_num_seqs, max_model_len), np.int64)
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.zeros(max_num_seqs, np.float32)
        self._seed_keys = np.zeros(max_num_seqs, np.int64)
        self._rows: dict[int, _Row] = {}  # by Request.arrival
        self._free_rows = list(range(max_num_seqs))[::-1]
        self._drafts = drafts
        self._pushed_table: tuple[int, list[int]] = (-1, [])
        self._views: KeptViews[tuple[int, int], dict[str, torch.Tensor]] = KeptViews()
        self._foreseen: Foreseen | None = None
        self._on_device: WrittenOnDevice | None = None
        self._sampled: tuple[torch.Tensor, dict[int, int]] | None = None

    def prepare(
        self,
        batch: ScheduledBatch,
        pad_reqs_to: int = 0,
        pad_tokens_to: int = 0,
        *,
        captured: bool = False,  # whether graphs alone read them: then nothing on the CPU is read
    ) -> ModelInput:
        """The tensors of a step, filled up with requests and tokens that are nobody's.

        They are valid until the next call, or until :meth:`foresee`.
        """
        on_device, self._on_device = self._on_device, None
        if (
            captured
            and on_device is not None
            and on_device.padded_reqs == pad_reqs_to
            and on_device.signature == signature_of(batch)
            and self._had_blocks(batch)
        ):
            return self._as_written(batch, pad_reqs_to, pad_tokens_to)
        foreseen, self._foreseen = self._foreseen, None
        if (
            foreseen is not None
            and foreseen.inputs.has_size(pad_reqs_to, pad_tokens_to)
            and foreseen.signature == signature_of(batch)
        ):
            return foreseen.inputs
        self.buffers.wait()
        rows = [self._up_to_date(part) for part in batch.requests]
        starts = [part.start for part in batch.requests]
        counts = [part.count for part in batch.requests]
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        num_reqs, num_tokens = len(rows), sum(counts)
        padded_reqs, padded_tokens = max(num_reqs, pad_reqs_to), max(num_tokens, pad_tokens_to)
        self._write_requests(counts, lengths, padded_reqs)
        self._write_tokens(rows, starts, counts, padded_tokens)
        num_sampled, sampled_rows, sampling = self._write_sampled(batch, rows, num_tokens)
        num_fed = self._write_fed(batch)
        self._push_table(rows, padded_reqs)
        self.buffers.step.push()
        if num_fed:
            self._feed(num_fed)
        drafts = None
        if self._drafts is not None:
            drafts = self._drafts.write(batch, rows, padded_reqs, padded_tokens)
        self.buffers.pushed()
        views = self._views_of(padded_reqs, padded_tokens)
        return ModelInput(
            input_ids=views["input_ids"],
            positions=views["positions"],
            common=common_of(views, counts, lengths),
            sampled_rows=sampled_rows,
            num_sampled=num_sampled,
            sampling=sampling,
            drafts=drafts,
        )

    def keep_sampled(
        self,
        batch: ScheduledBatch,
        sampled: torch.Tensor,  # [N] int64, on the device
    ) -> None:
        """Note what a step has chosen, so that the next one may be prepared before that is known.

        Where a request has a placeholder, :meth:`prepare` takes its token from here: it gets from
        one step to the next on the device. For batches without drafts.
        """
        chosen = (part.request.arrival for part in batch.requests if part.samples)
        self._sampled = sampled, {arrival: index for index, arrival in enumerate(chosen)}

    def foresee(
        self,
        batch: ScheduledBatch,
        inputs: ModelInput,  # as prepared for ``batch``
        sampled: torch.Tensor,  # [N] int64, on the device
    ) -> None:
        """Write the step that mostly follows one of decodes, before anybody knows the tokens.

        To be called when all work of the step is queued: the CPU is idle then, and the tokens get
        from one step to the next without it. :meth:`prepare` looks whether it came as foreseen.
        What ``inputs`` has on the CPU is overwritten: nothing may be copying it any more.
        Not foreseen are drafts, and the step in which a request needs another block.
        """
        rows = self._rows_of_decodes(batch)
        if not rows:
            return
        self.buffers.wait()
        starts = [part.start + 1 for part in batch.requests]
        counts, lengths = [1] * len(rows), [start + 1 for start in starts]
        padded_reqs, padded_tokens = inputs.common.seq_lens.shape[0], inputs.input_ids.shape[0]
        self._write_requests(counts, lengths, padded_reqs)
        self._write_tokens(rows, starts, counts, padded_tokens)
        sampling = None if inputs.sampling is None else self._sampling(rows, lengths)
        self.buffers.step.push()
        self.buffers.pushed()
        inputs.input_ids[: len(rows)].copy_(sampled)
        common = common_of(self._views_of(padded_reqs, padded_tokens), counts, lengths)
        self._foreseen = Foreseen.after(
            batch, dataclasses.replace(inputs, common=common, sampling=sampling)
        )

    def fields_of_decodes(self, padded_reqs: int) -> NextStep:
        """What a step of decodes reads that the device may overwrite with the one after it."""
        assert self._drafts is not None, "steps without drafts are written by the CPU"
        k = self._drafts.num_speculative_tokens
        most = min(padded_reqs * (k + 1), self._most_tokens)
        drafts = self._drafts.greedy_step(padded_reqs, most)
        return next_step_of(self._views_of(padded_reqs, most), drafts)

    def foresee_drafts(self, batch: ScheduledBatch, result: StepResult, inputs: ModelInput) -> None:
        """Note that the device has written the step which goes on with the outcome of a batch.

        :meth:`prepare` looks whether that is what was scheduled. It is not where a request has
        ended or begun, where its blocks were not there yet, and where fewer drafts fit.
        """
        self._on_device = WrittenOnDevice.after(batch, result, inputs.common.seq_lens.shape[0])

    def _had_blocks(self, batch: ScheduledBatch) -> bool:
        """Whether the blocks that a step needs were on the device when it was written there."""
        assert self._drafts is not None, "it was written with drafts"
        lookahead = self._drafts.lookahead
        return all(
            part.start + part.count + lookahead
            <= self._tables.num_positions(self._rows[part.request.arrival].index)
            for part in batch.requests
        )

    def _as_written(
        self, batch: ScheduledBatch, padded_reqs: int, padded_tokens: int
    ) -> ModelInput:
        """A step that the device has written. What it has on the CPU is of another one."""
        assert self._drafts is not None, "it was written with drafts"
        rows = [self._rows[part.request.arrival].index for part in batch.requests]
        for row, part in zip(rows, batch.requests, strict=True):
            self._tables.extend(row, part.request.block_ids)  # with those of the step after it
        if self._tables.version != self._pushed_table[0]:
            self.buffers.wait()
            self._push_table(rows, padded_reqs)
            self.buffers.pushed()
        views = self._views_of(padded_reqs, padded_tokens)
        counts = [part.count for part in batch.requests]
        lengths = [part.start + part.count for part in batch.requests]
        return ModelInput(
            input_ids=views["input_ids"],
            positions=views["positions"],
            common=common_of(views, counts, lengths),
            sampled_rows=None,
            num_sampled=sum(counts),
            sampling=None,
            drafts=self._drafts.greedy_step(padded_reqs, padded_tokens),
        )

    def _rows_of_decodes(self, batch: ScheduledBatch) -> list[int]:
        """The rows of a batch if each of its requests can go on with one token; else none."""
        if self._drafts is not None:
            return []
        rows = []
        for part in batch.requests:
            row, next_one = self._rows[part.request.arrival].index, part.start + 1
            room = next_one < min(self._tables.num_positions(row), self._tokens.shape[1])
            if part.count != 1 or not part.samples or not room:
                return []
            rows.append(row)
        return rows

    # Rows

    def _up_to_date(self, part: ScheduledRequest) -> int:
        """The row of a request, with its blocks and all tokens that this step needs."""
        request = part.request
        row = self._rows.get(request.arrival)
        if row is None:
            row = self._new_row(request)
        elif row.num_preemptions != request.num_preemptions:
            row.num_preemptions = request.num_preemptions
            self._tables.clear(row.index)  # its blocks are others now
        self._tables.extend(row.index, request.block_ids)
        # Its last token may be a placeholder.
        known = row.num_known
        stop = min(part.start + part.count, request.num_tokens + part.num_drafts)
        if known < stop:
            self._tokens[row.index, known:stop] = request.token_ids(known, stop)
            row.num_known = stop - part.num_drafts
        return row.index

    def _new_row(self, request: Request) -> _Row:
        if not self._free_rows:
            for arrival, row in list(self._rows.items()):
                # A preempted one keeps its row, and its drafts' distributions with it. It is there
                # for it: none that came later starts before it goes on.
                if row.request.status is RequestStatus.FINISHED:
                    del self._rows[arrival]
                    self._tables.clear(row.index)
                    self._free_rows.append(row.index)
        assert self._free_rows, "more requests have begun than max_num_seqs"
        index, params = self._free_rows.pop(), request.params
        self._temperature[index] = min(params.temperature, _LARGEST_FLOAT32)
        self._top_k[index] = min(params.top_k, _LARGEST_TOP_K)
        self._top_p[index] = params.top_p
        self._seed_keys[index] = int(seed_keys(torch.tensor([request.seed])))
        if self._drafts is not None:
            self._drafts.give_row(index, request)
        row = self._rows[request.arrival] = _Row(index, request)
        return row

    # The parts of a step

    def _write_requests(self, counts: list[int], lengths: list[int], padded_reqs: int) -> None:
        num_reqs = len(counts)
        query_start_loc = self.buffers.step.numpy["query_start_loc"]
        seq_lens = self.buffers.step.numpy["seq_lens"]
        query_start_loc[1 : num_reqs + 1] = list(itertools.accumulate(counts))
        seq_lens[:num_reqs] = lengths
        if padded_reqs > num_reqs:
            query_start_loc[num_reqs + 1 : padded_reqs + 1] = query_start_loc[num_reqs]
            seq_lens[num_reqs:padded_reqs] = 0

    def _write_tokens(
        self, rows: list[int], starts: list[int], counts: list[int], padded_tokens: int
    ) -> None:
        fields, num_tokens = self.buffers.step.numpy, sum(counts)
        row_of = np.array(rows, np.int64)
        positions = fields["positions"][:num_tokens]
        if num_tokens == len(rows):
            positions[:] = starts
        else:
            before = fields["query_start_loc"][: len(rows)]
            np.add(np.repeat(starts - before, counts), np.arange(num_tokens), out=positions)
            row_of = np.repeat(row_of, counts)
        fields["input_ids"][:num_tokens] = self._tokens[row_of, positions]
        self._tables.slots(row_of, positions, fields["slot_mapping"][:num_tokens])
        if padded_tokens > num_tokens:
            padding = slice(num_tokens, padded_tokens)
            fields["positions"][padding] = 0
            fields["input_ids"][padding] = 0
            fields["slot_mapping"][padding] = PAD_SLOT_ID

    def _write_fed(self, batch: ScheduledBatch) -> int:
        """Note which tokens come from the step before, and from where in it; returns how many."""
        fed: list[int] = []
        sources: list[int] = []
        token = -1
        for part in batch.requests:
            token += part.count
            if part.start + part.count > part.request.num_tokens + part.num_drafts:
                assert self._sampled is not None, "a placeholder, but no step was kept"
                fed.append(token)
                sources.append(self._sampled[1][part.request.arrival])
        fields = self.buffers.step.numpy
        fields["fed_tokens"][: len(fed)] = fed
        fields["fed_from"][: len(fed)] = sources
        return len(fed)

    def _feed(self, count: int) -> None:
        """Bring tokens that nobody knows here yet to their places, on the device."""
        assert self._sampled is not None, "written down from it"
        fields = self.buffers.step.device
        tokens = self._sampled[0].index_select(0, fields["fed_from"][:count])
        fields["input_ids"].index_copy_(0, fields["fed_tokens"][:count], tokens)

    def _push_table(self, rows: list[int], padded_reqs: int) -> None:
        """Put the block tables into the batch's order, unless they are there already."""
        state = (self._tables.version, rows + [-1] * (padded_reqs - len(rows)))
        if self._pushed_table == state:
            return
        self._pushed_table = state
        table = self.buffers.table.numpy["block_table"]
        np.take(self._tables.ids, rows, axis=0, out=table[: len(rows)], mode="clip")
        table[len(rows) : padded_reqs] = NULL_BLOCK
        self.buffers.table.push()

    def forget_tables(self) -> None:
        """Whoever has written into the block tables' buffer says so: they are pushed anew."""
        self._pushed_table = (-1, [])
        self._foreseen = self._on_device = None

    def _write_sampled(
        self, batch: ScheduledBatch, rows: list[int], num_tokens: int
    ) -> tuple[int, torch.Tensor | None, SamplingTensors | None]:
        """Which tokens are sampled after, and how: N, ``sampled_rows`` and ``sampling``."""
        last = 0
        tokens: list[int] = []  # [N] of the T tokens
        greedy = True
        for part in batch.requests:
            last += part.count
            if part.samples:
                tokens += range(last - part.num_drafts - 1, last)
                greedy = greedy and part.request.params.temperature == 0
        num_sampled = len(tokens)
        sampling = None
        if not greedy and self._drafts is None:
            sampling = self._sampling_of(batch, rows)
        if num_sampled == num_tokens:
            return num_sampled, None, sampling
        self.buffers.step.numpy["sampled_rows"][:num_sampled] = tokens
        return num_sampled, self.buffers.step.device["sampled_rows"][:num_sampled], sampling

    def _sampling_of(self, batch: ScheduledBatch, rows: list[int]) -> SamplingTensors:
        owners: list[int] = []
        positions: list[int] = []
        for part, row in zip(batch.requests, rows, strict=True):
            if part.samples:
                stop, drafts = part.start + part.count, part.num_drafts
                owners += [row] * (drafts + 1)
                positions += range(stop - drafts, stop + 1)
        return self._sampling(owners, positions)

    def _sampling(
        self,
        owners: list[int],  # [N] the row of the request
        positions: list[int],  # [N] of what is sampled
    ) -> SamplingTensors:
        count = len(owners)
        fields = self.buffers.sampling.numpy
        fields["temperature"][:count] = self._temperature[owners]
        fields["top_k"][:count] = top_k = self._top_k[owners]
        fields["top_p"][:count] = top_p = self._top_p[owners]
        keys = noise_keys(torch.from_numpy(self._seed_keys[owners]), torch.tensor(positions))
        fields["keys"][:count] = keys.numpy()
        self.buffers.sampling.push()
        device = self.buffers.sampling.device
        return SamplingTensors(
            **{name: device[name][:count] for name in ("temperature", "top_k", "top_p", "keys")},
            filtered=bool(top_k.any() or (top_p < 1).any()),
        )

    def _views_of(self, padded_reqs: int, padded_tokens: int) -> dict[str, torch.Tensor]:
        """The buffers cut to a batch's size."""

        def cut() -> dict[str, torch.Tensor]:
            device, host = self.buffers.step.device, self.buffers.step.host
            return {
                "input_ids": device["input_ids"][:padded_tokens],
                "positions": device["positions"][:padded_tokens],
                "slot_mapping": device["slot_mapping"][:padded_tokens],
                "query_start_loc": device["query_start_loc"][: padded_reqs + 1],
                "seq_lens": device["seq_lens"][:padded_reqs],
                "block_table": self.buffers.table.device["block_table"][:padded_reqs],
                "query_start_loc_cpu": host["query_start_loc"][: padded_reqs + 1],
                "seq_lens_cpu": host["seq_lens"][:padded_reqs],
            }

        return self._views.of((padded_reqs, padded_tokens), cut)
