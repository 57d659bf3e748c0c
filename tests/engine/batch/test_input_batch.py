"""What a step's tensors hold, against writing them down plainly, over random traffic."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence

import pytest
import torch

from sample_engine.attention.interface import PAD_SLOT_ID
from sample_engine.batch.input_batch import InputBatch
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.request import Request, RequestStatus
from sample_engine.batch.request_limits import SchedulerLimits
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, ScheduledRequest, StepResult
from sample_engine.sampling import noise_keys, seed_keys
from sample_engine.scheduler import Scheduler
from tests.engine.support.asynchronous import AsyncModel
from tests.engine.support.scheduler import VOCAB, FakeModel, limits

BLOCK = 4
MODEL_LEN = 64
CPU = torch.device("cpu")


def input_batch(max_num_seqs: int = 4, max_tokens: int = 24) -> InputBatch:
    return InputBatch(max_num_seqs, max_tokens, MODEL_LEN, BLOCK, CPU)


def running(
    arrival: int, prompt: Sequence[int], blocks: Sequence[int], **params: object
) -> Request:
    settings = SamplingParams(**params)  # type: ignore[arg-type]
    request = Request(f"r{arrival}", list(prompt), settings, arrival + 100, arrival)
    request.block_ids = list(blocks)
    request.status = RequestStatus.RUNNING
    return request


def check(made: ModelInput, batch: ScheduledBatch, reqs: int = 0, tokens: int = 0) -> None:
    """Compare with the plainest way to write the same down."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, lengths = [0], list[int]()
    rows: list[int] = []
    table: list[list[int]] = []
    for part in batch.requests:
        stop = part.start + part.count
        ids += part.request.token_ids(part.start, stop)
        positions += range(part.start, stop)
        for position in range(part.start, stop):
            slots.append(part.request.block_ids[position // BLOCK] * BLOCK + position % BLOCK)
        starts.append(len(ids))
        lengths.append(stop)
        blocks = part.request.block_ids
        table.append(blocks + [0] * (MODEL_LEN // BLOCK - len(blocks)))
        if part.samples:
            rows += range(len(ids) - part.num_drafts - 1, len(ids))
    num_reqs, num_tokens = len(lengths), len(ids)
    more_reqs, more_tokens = max(0, reqs - num_reqs), max(0, tokens - num_tokens)
    common = made.common
    assert made.input_ids.tolist() == ids + [0] * more_tokens
    assert made.positions.tolist() == positions + [0] * more_tokens
    assert common.slot_mapping.tolist() == slots + [PAD_SLOT_ID] * more_tokens
    assert common.query_start_loc.tolist() == starts + [num_tokens] * more_reqs
    assert common.seq_lens.tolist() == lengths + [0] * more_reqs
    assert common.block_table.tolist() == table + [[0] * (MODEL_LEN // BLOCK)] * more_reqs
    assert common.query_start_loc_cpu.equal(common.query_start_loc)
    assert common.seq_lens_cpu.equal(common.seq_lens)
    assert (common.num_reqs, common.num_tokens) == (num_reqs, num_tokens)
    assert common.max_query_len == max(part.count for part in batch.requests)
    assert common.max_seq_len == max(lengths)
    assert made.num_sampled == len(rows)
    if made.sampled_rows is None:
        assert rows == list(range(num_tokens))
    else:
        assert made.sampled_rows.tolist() == rows
    check_sampling(made, batch)


def check_sampling(made: ModelInput, batch: ScheduledBatch) -> None:
    chosen = [
        (part.request, position)
        for part in batch.requests
        if part.samples
        for position in range(
            part.start + part.count - part.num_drafts, part.start + part.count + 1
        )
    ]
    how = made.sampling
    if all(request.params.temperature == 0 for request, _ in chosen):
        assert how is None
        return
    assert how is not None
    assert how.temperature.tolist() == pytest.approx([r.params.temperature for r, _ in chosen])
    assert how.top_k.tolist() == [r.params.top_k for r, _ in chosen]
    assert how.top_p.tolist() == pytest.approx([r.params.top_p for r, _ in chosen])
    seeds = torch.tensor([r.seed for r, _ in chosen])
    positions = torch.tensor([position for _, position in chosen])
    assert how.keys.equal(noise_keys(seed_keys(seeds), positions))
    assert how.filtered == any(r.params.top_k or r.params.top_p < 1 for r, _ in chosen)


@pytest.mark.parametrize("seed", range(8))
def test_every_step_of_random_traffic_is_written_down_rightly(seed: int) -> None:
    chance = random.Random(seed)
    within = limits(
        num_blocks=chance.randint(9, 12),
        max_num_seqs=4,
        max_num_batched_tokens=24,
        max_model_len=MODEL_LEN,
    )
    scheduler, model, inputs = Scheduler(within), FakeModel(BLOCK), input_batch()
    ended = arrivals = foreseen = 0
    while ended < 100:
        if arrivals - ended < 8:
            sampled = chance.random() < seed / 8
            request = Request(
                f"r{arrivals}",
                chance.choices(range(VOCAB - 1), k=chance.randint(1, 20)),
                SamplingParams(
                    temperature=chance.random() + 0.1 if sampled else 0.0,
                    top_k=chance.choice([0, 0, 3]),
                    top_p=chance.choice([1.0, 1.0, 0.5]),
                    max_tokens=chance.randint(1, 24),
                ),
                chance.randrange(1 << 40),
                arrivals,
            )
            scheduler.add(request)
            arrivals += 1
        batch = scheduler.schedule()
        result = model.run(
            batch, lambda known: chance.choices(range(VOCAB), k=chance.randint(0, 3) // 2)
        )
        if batch.requests:
            reqs, tokens = chance.choice([(0, 0), (0, 0), (0, 0), (4, 24), (2, 9)])
            guess = inputs._foreseen
            made = inputs.prepare(batch, reqs, tokens)
            foreseen += guess is not None and made is guess.inputs
            check(made, batch, reqs, tokens)
            if chance.random() < 0.8:
                inputs.foresee(batch, made, torch.tensor(list(itertools.chain(*result.sampled))))
        outputs = scheduler.postprocess(batch, result)
        ended += sum(output.finish_reason is not None for output in outputs)
        if chance.random() < 0.03 and scheduler.running:
            scheduler.abort([chance.choice(scheduler.running).request_id])
            ended += 1
    assert scheduler.counters.preemptions > 0
    assert foreseen >= 5


class Asynchronous:
    """Scheduler, model and inputs with a step under way: what it chose is on the device alone."""

    def __init__(self, within: SchedulerLimits) -> None:
        self.scheduler, self.model = Scheduler(within), AsyncModel(BLOCK)
        self.inputs = input_batch()
        self.under_way: tuple[ScheduledBatch, StepResult] | None = None
        self.fed = self.ended = 0

    def step(self, reqs: int = 0, tokens: int = 0) -> None:
        batch, known = self.scheduler.schedule(), self.under_way
        self.under_way = None
        if batch.requests:
            made = self.inputs.prepare(batch, reqs, tokens)
            self._check(made, batch, reqs, tokens)
            result = self.model.run(batch)
            chosen = torch.tensor(list(itertools.chain(*result.sampled)), dtype=torch.int64)
            self.inputs.keep_sampled(batch, chosen)
            self.under_way = batch, result
        if known is not None:
            outputs = self.scheduler.postprocess(*known)
            self.ended += sum(output.finish_reason is not None for output in outputs)

    def _check(self, made: ModelInput, batch: ScheduledBatch, reqs: int, tokens: int) -> None:
        """As for a step whose tokens are all known."""
        complete = []
        for part in batch.requests:
            whole = self.model.text(part, part.start + part.count)
            self.fed += len(whole) > part.request.num_tokens
            prompt = [*whole, *part.request.token_ids(len(whole), part.request.num_tokens)]
            request = dataclasses.replace(
                part.request,
                prompt_token_ids=prompt,
                output_token_ids=[],
                num_output_placeholders=0,
            )
            complete.append(ScheduledRequest(request, part.start, part.count))
        check(made, ScheduledBatch(tuple(complete)), reqs, tokens)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_are_not_known_yet_are_fed_from_the_step_before(seed: int) -> None:
    chance = random.Random(seed)
    run = Asynchronous(
        limits(
            num_blocks=chance.randint(9, 12),
            max_num_seqs=4,
            max_num_batched_tokens=24,
            max_model_len=MODEL_LEN,
        )
    )
    arrivals = 0
    while run.ended < 60:
        if arrivals - run.ended < 8:
            prompt = chance.choices(range(VOCAB - 1), k=chance.randint(1, 20))
            params = SamplingParams(
                temperature=chance.choice([0.0, 0.7]), max_tokens=chance.randint(1, 24)
            )
            run.scheduler.add(Request(f"r{arrivals}", prompt, params, arrivals, arrivals))
            arrivals += 1
        run.step(*chance.choice([(0, 0), (4, 24), (2, 9)]))
        if chance.random() < 0.03 and run.scheduler.running:
            run.scheduler.abort([chance.choice(run.scheduler.running).request_id])
            run.ended += 1
    assert run.scheduler.counters.preemptions > 0
    assert run.fed > 100


def test_rows_of_the_step_before_are_counted_without_those_that_sampled_nothing() -> None:
    inputs = input_batch()
    chunk, first = running(0, [1, 2, 3, 4], [1]), running(1, [5, 6], [2])
    second = running(2, [7], [3])
    before = ScheduledBatch(
        (
            ScheduledRequest(chunk, 0, 2),
            ScheduledRequest(first, 0, 2),
            ScheduledRequest(second, 0, 1),
        )
    )
    inputs.prepare(before)
    inputs.keep_sampled(before, torch.tensor([40, 50]))
    first.num_output_placeholders = second.num_output_placeholders = 1
    batch = ScheduledBatch(
        (
            ScheduledRequest(second, 1, 1),
            ScheduledRequest(chunk, 2, 2),
            ScheduledRequest(first, 2, 1),
        )
    )
    assert [part.samples for part in batch.requests] == [True, True, True]
    made = inputs.prepare(batch, 4, 8)
    assert made.input_ids.tolist() == [50, 3, 4, 40, 0, 0, 0, 0]
    # Later the tokens are known here, and come from here.
    second.output_token_ids, second.num_output_placeholders = [51, 52], 0
    again = inputs.prepare(ScheduledBatch((ScheduledRequest(second, 1, 2),)))
    assert again.input_ids.tolist() == [51, 52]


def test_a_step_that_comes_as_foreseen_is_not_written_again() -> None:
    inputs, request = input_batch(), running(0, [5, 6, 7], [3, 1])
    inputs.prepare(ScheduledBatch((ScheduledRequest(request, 0, 3),)))
    request.output_token_ids.append(8)
    batch = ScheduledBatch((ScheduledRequest(request, 3, 1),))
    made = inputs.prepare(batch, 2, 2)
    inputs.foresee(batch, made, torch.tensor([9]))
    request.output_token_ids.append(9)
    batch = ScheduledBatch((ScheduledRequest(request, 4, 1),))
    inputs._tokens.fill(-1)  # nobody looks here
    check(inputs.prepare(batch, 2, 2), batch, 2, 2)


def test_what_comes_otherwise_than_foreseen_is_written_anew() -> None:
    def foreseeing() -> tuple[InputBatch, Request]:
        inputs, request = input_batch(), running(0, [5, 6, 7], [3, 1])
        batch = ScheduledBatch((ScheduledRequest(request, 2, 1),))
        inputs.foresee(batch, inputs.prepare(batch), torch.tensor([9]))
        request.output_token_ids.append(9)
        return inputs, request

    inputs, request = foreseeing()  # other blocks
    request.num_preemptions, request.block_ids = 1, [6, 2]
    batch = ScheduledBatch((ScheduledRequest(request, 3, 1),))
    check(inputs.prepare(batch), batch)
    inputs, request = foreseeing()  # another request beside it
    batch = ScheduledBatch(
        (ScheduledRequest(request, 3, 1), ScheduledRequest(running(1, [4], [5]), 0, 1))
    )
    check(inputs.prepare(batch), batch)
    inputs, request = foreseeing()  # another size
    batch = ScheduledBatch((ScheduledRequest(request, 3, 1),))
    check(inputs.prepare(batch, 4, 8), batch, 4, 8)
    inputs, request = foreseeing()  # somebody has written into the tables' buffer
    inputs.buffers.table.numpy["block_table"].fill(7)
    inputs.forget_tables()
    check(inputs.prepare(batch), batch)


def test_buffers_stay_where_they_are() -> None:
    inputs = input_batch()
    request = running(0, range(10), [3, 1, 2])
    addresses = set()
    for start, count in ((0, 10), (0, 4), (4, 1)):
        batch = ScheduledBatch((ScheduledRequest(request, start, count),))
        made = inputs.prepare(batch, 2, 12)
        common = made.common
        addresses.add(
            tuple(
                tensor.data_ptr()
                for tensor in (
                    made.input_ids,
                    made.positions,
                    common.slot_mapping,
                    common.query_start_loc,
                    common.seq_lens,
                    common.block_table,
                )
            )
        )
    assert len(addresses) == 1
    assert all(address % 16 == 0 for address in next(iter(addresses)))


def test_a_smaller_batch_leaves_nothing_of_a_larger_one_in_the_padding() -> None:
    inputs = input_batch()
    large = ScheduledBatch(
        tuple(
            ScheduledRequest(running(number, range(1, 7), [number + 1, number + 5]), 0, 6)
            for number in range(4)
        )
    )
    check(inputs.prepare(large), large)
    for part in large.requests:
        part.request.status = RequestStatus.FINISHED
    small = ScheduledBatch((ScheduledRequest(running(9, [7, 8], [15]), 0, 2),))
    check(inputs.prepare(small, 4, 24), small, 4, 24)


def test_rows_of_ended_requests_are_reused() -> None:
    inputs = input_batch(max_num_seqs=2)
    for arrival in range(10):
        request = running(arrival, [arrival] * 3, [arrival + 1])
        batch = ScheduledBatch((ScheduledRequest(request, 0, 3),))
        check(inputs.prepare(batch), batch)
        request.status = RequestStatus.FINISHED


def test_more_running_requests_than_rows_are_a_mistake_of_the_caller() -> None:
    inputs = input_batch(max_num_seqs=1)
    parts = tuple(ScheduledRequest(running(n, [1], [n + 1]), 0, 1) for n in range(2))
    with pytest.raises(AssertionError, match="more requests have begun than max_num_seqs"):
        inputs.prepare(ScheduledBatch(parts))


def test_settings_beyond_what_a_tensor_holds_mean_the_same() -> None:
    inputs = input_batch()
    request = running(0, [1, 2], [1], temperature=1e300, top_k=2**63 - 1)
    made = inputs.prepare(ScheduledBatch((ScheduledRequest(request, 0, 2),)))
    assert made.sampling is not None
    assert made.sampling.temperature.isfinite().all()
    assert made.sampling.top_k.item() > 10**9
