"""A model without tensors for tests of the scheduler, and what must hold after every step.

The model keeps in each slot of its cache the text up to there, in the place of keys and values. So
it notices a block that is shared wrongly, overwritten too early, or left from other text.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import FinishReason, Request, RequestStatus
from sample_engine.batch.request_limits import SchedulerLimits
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, ScheduledRequest, StepResult
from sample_engine.errors import KVTransferError, PromptError
from sample_engine.kv_cache.prefix_cache import ROOT_HASH, block_hash
from sample_engine.scheduler import Scheduler
from tests.engine.support.rejection import accept_drafts

VOCAB = 4
EOS = 3

# From a text, so many drafts for what follows it.
Drafter = Callable[[Sequence[int]], Sequence[int]]


def digest(tokens: Sequence[int]) -> int:
    return zlib.crc32(array("q", tokens).tobytes())


def digests(tokens: Sequence[int]) -> list[int]:
    """The digests of a text up to each of its tokens."""
    found, value = [], 0
    for token in tokens:
        value = zlib.crc32(token.to_bytes(8, sys.byteorder), value)
        found.append(value)
    return found


def next_token(tokens: Sequence[int]) -> int:
    """The model's choice after a text; seldom the end of it."""
    value = digest(tokens) >> 7
    return EOS if value % 17 == 0 else value % (VOCAB - 1)


def limits(**changed: Any) -> SchedulerLimits:
    values: dict[str, Any] = {
        "num_blocks": 33,
        "block_size": 4,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "eos_token_id": EOS,
    }
    return SchedulerLimits(**{**values, **changed})


def continuation(
    prompt: Sequence[int], params: SamplingParams, within: SchedulerLimits
) -> tuple[list[int], FinishReason]:
    """What a request has to come to, whatever else runs: a plain loop."""
    tokens = list(prompt)
    cache_tokens = (within.num_blocks - 1) * within.block_size
    while True:
        tokens.append(next_token(tokens))
        new = tokens[len(prompt) :]
        if tokens[-1] == within.eos_token_id and not params.ignore_eos:
            return new, FinishReason.STOP
        if len(new) == params.max_tokens or len(tokens) == within.max_model_len:
            return new, FinishReason.LENGTH
        if len(tokens) > cache_tokens:
            return new, FinishReason.ERROR


class FakeModel:
    """Executes batches; complains of a cache that does not hold what it should."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory: dict[int, int] = {}

    def run(self, batch: ScheduledBatch, drafter: Drafter | None = None) -> StepResult:
        for part in batch.requests:
            text = self.text(part, part.start + part.count)
            assert len(text) == part.start + part.count, "a part beyond the request's end"
            for position, value in enumerate(digests(text)[part.start :], part.start):
                self.memory[self._slot(part, position)] = value
        sampled = tuple(self._sampled(part) for part in batch.requests)
        if drafter is None:
            return StepResult(sampled, ())
        drafts = tuple(
            tuple(drafter(part.request.token_ids(0, part.request.num_tokens) + list(new)))
            if new
            else ()
            for part, new in zip(batch.requests, sampled, strict=True)
        )
        return StepResult(sampled, drafts)

    def text(self, part: ScheduledRequest, stop: int) -> list[int]:
        """The first tokens of a request, as far as they are known to the model."""
        return part.request.token_ids(0, stop)

    def _slot(self, part: ScheduledRequest, position: int) -> int:
        block = part.request.block_ids[position // self.block_size]
        assert block, "a token in the null block"
        return block * self.block_size + position % self.block_size

    def _sampled(self, part: ScheduledRequest) -> tuple[int, ...]:
        stop = part.start + part.count
        text = self.text(part, stop)
        for position, value in enumerate(digests(text)):
            assert self.memory.get(self._slot(part, position)) == value, (
                f"the cache holds another text at position {position} of {part}"
            )
        if not part.samples:
            return ()
        first = stop - part.num_drafts
        chosen = [next_token(text[:end]) for end in range(first, stop + 1)]
        return accept_drafts(chosen, text[first:])


class FakeStore:
    """Keeps what is in blocks by their hashes, for any number of models.

    Asked for several blocks it forgets the last of them now and then, as a store that evicts does.
    """

    def __init__(self, model: FakeModel, blocks: dict[bytes, list[int]] | None = None) -> None:
        self._model = model
        self.blocks = {} if blocks is None else blocks
        self.error: str | None = None
        self.loaded = 0
        self.fetches = True

    def load(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> int:
        assert len(hashes) == len(block_ids) > 0
        if self.error is not None:
            raise KVTransferError(self.error)
        for count, (each, block_id) in enumerate(zip(hashes, block_ids, strict=True)):
            if each not in self.blocks or (count and each[0] % 5 == 0):
                return count
            for place, value in enumerate(self.blocks[each]):
                self._model.memory[block_id * self._model.block_size + place] = value
            self.loaded += 1
        return len(hashes)

    def save(self, blocks: Sequence[tuple[bytes, int]]) -> None:
        size = self._model.block_size
        for each, block_id in blocks:
            slots = range(block_id * size, (block_id + 1) * size)
            self.blocks[each] = [self._model.memory[slot] for slot in slots]


class Harness:
    """A scheduler and a model, with everything checked that must hold at every step.

    ``shared``: blocks that other harnesses have stored, and this one's; None: none are shared.
    """

    def __init__(
        self,
        within: SchedulerLimits,
        drafter: Drafter | None = None,
        shared: dict[bytes, list[int]] | None = None,
    ) -> None:
        self.limits = within
        self.model = self._make_model(within.block_size)
        self.store = None if shared is None else FakeStore(self.model, shared)
        self.scheduler = Scheduler(within, self.store)
        self.drafter = drafter
        self.requests: dict[str, Request] = {}
        self._unsettled: dict[str, Request] = {}  # without those that a check has seen ended
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.expected: dict[str, tuple[list[int], FinishReason]] = {}
        self.last_batch = ScheduledBatch(())

    def _make_model(self, block_size: int) -> FakeModel:
        return FakeModel(block_size)

    def add(self, request_id: str, prompt: Sequence[int], **params: Any) -> Request:
        request = Request(request_id, list(prompt), SamplingParams(**params), 0, len(self.requests))
        self.scheduler.add(request)
        self.requests[request_id] = self._unsettled[request_id] = request
        self.tokens[request_id] = []
        return request

    def try_add(self, request_id: str, prompt: Sequence[int], **params: Any) -> str | None:
        """Add a request, or return why it is refused."""
        try:
            self.add(request_id, prompt, **params)
        except PromptError as error:
            return str(error)
        return None

    def abort(self, request_id: str) -> None:
        self.scheduler.abort([request_id])
        if request_id in self.requests and request_id not in self.ended:
            self.ended[request_id] = FinishReason.ABORT
        self.check()

    def step(self) -> list[CoreOutput]:
        alive = self._alive()
        self.last_batch = batch = self.scheduler.schedule()
        self._check_batch(batch, alive)
        result = self.model.run(batch, self.drafter) if batch.requests else StepResult((), ())
        outputs = self._postprocess(batch, result)
        assert bool(outputs or batch.requests) == bool(alive), "a step without progress"
        self.check()
        return outputs

    def _alive(self) -> list[Request]:
        return [r for name, r in self._unsettled.items() if name not in self.ended]

    def _postprocess(self, batch: ScheduledBatch, result: StepResult) -> list[CoreOutput]:
        outputs = self.scheduler.postprocess(batch, result)
        if self.store is not None:
            self.store.save(self.scheduler.kv.take_computed())
        for output in outputs:
            self._take(output)
        return outputs

    def run(self, most_steps: int = 10_000) -> None:
        """Step until all requests have ended."""
        for _ in range(most_steps):
            if not self.scheduler.has_unfinished():
                break
            self.step()
        assert not self.scheduler.has_unfinished(), f"not at an end after {most_steps} steps"
        assert set(self.ended) == set(self.requests)
        self._unsettled = dict(self.requests)
        self.check()
        assert self.scheduler.kv.pool.num_free == self.limits.num_blocks - 1
        self._check_prefix_cache()

    def _check_prefix_cache(self) -> None:
        """All that can be found are full blocks of texts that there were."""
        size = self.limits.block_size
        hashes = set()
        for request in self.requests.values():
            chained = ROOT_HASH
            ahead = int(self.limits.sees_next_token)
            for start in range(0, request.num_tokens - size + 1 - ahead, size):
                chained = block_hash(chained, request.token_ids(start, start + size + ahead))
                hashes.add(chained)
        cache = self.scheduler.kv.prefix_cache
        assert sum(len(cache.find([each])) for each in hashes) == len(cache)

    def _check_batch(self, batch: ScheduledBatch, alive: list[Request]) -> None:
        assert batch.num_tokens <= self.limits.max_num_batched_tokens
        assert len(batch.requests) <= self.limits.max_num_seqs
        assert all(part.count >= 1 for part in batch.requests)
        arrivals = [part.request.arrival for part in batch.requests]
        assert arrivals == sorted(set(arrivals))
        going_on = [r for r in alive if r.status is not RequestStatus.FINISHED]
        oldest = min(going_on, key=lambda request: request.arrival, default=None)
        if oldest is not None and self._must_go_on(oldest):
            assert arrivals[:1] == [oldest.arrival], "the oldest must go on"
        for part in batch.requests:
            # The last token of all is chosen, but never computed.
            assert part.start + part.count < self.limits.most_tokens(part.request)
            drafts = len(part.request.draft_token_ids)
            assert part.num_drafts == (drafts if part.samples else 0), "drafts were cut"
            stop = part.start + part.count
            assert part.samples or stop < part.request.num_tokens, "the last token, but no drafts"
            self._check_lookahead(part)
            if not self.limits.enable_chunked_prefill and not part.samples:
                longest = self.limits.max_num_batched_tokens
                assert part.request.num_tokens + drafts > longest, "cut though it fits a step"

    def _must_go_on(self, oldest: Request) -> bool:
        del oldest
        return True

    def _check_lookahead(self, part: ScheduledRequest) -> None:
        """All tokens that a speculator may keep something of have blocks of their own."""
        if not part.samples:
            return
        size, cache = self.limits.block_size, (self.limits.num_blocks - 1) * self.limits.block_size
        last = min(self.limits.most_tokens(part.request) - 1, cache)
        wanted = min(part.start + part.count + self.limits.lookahead, last)
        assert len(part.request.block_ids) * size >= wanted

    def _take(self, output: CoreOutput) -> None:
        """An output continues what came before, and nothing comes after the end."""
        name = output.request_id
        assert name not in self.ended, f"{name!r} had ended"
        request = self.requests[name]
        self.tokens[name] += output.new_token_ids
        if name not in self.expected:
            whole = continuation(request.prompt_token_ids, request.params, self.limits)
            self.expected[name] = whole
        expected, reason = self.expected[name]
        assert self.tokens[name] == expected[: len(self.tokens[name])]
        if output.finish_reason is not None:
            self.ended[name] = output.finish_reason
            assert (self.tokens[name], output.finish_reason) == (expected, reason)
            assert bool(output.error) == (reason is FinishReason.ERROR)

    def check(self) -> None:
        """No block is lost, held by nobody, freed twice, or shared by different texts.

        What has ended is looked at once after its end, and again at the end of all.
        """
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        holding = [*scheduler.running]
        held = Counter(block for request in holding for block in request.block_ids)
        assert 0 not in held
        assert pool.num_free == self.limits.num_blocks - 1 - len(held)
        for block in range(1, self.limits.num_blocks):
            assert pool.ref_count(block) == held[block]
        for request in scheduler.waiting:
            assert not request.block_ids
        self._check_sharing(holding)
        arrivals = [r.arrival for r in [*scheduler.running, *scheduler.waiting]]
        assert arrivals == sorted(arrivals)
        assert len(scheduler.running) <= self.limits.max_num_seqs
        # What has begun keeps its row in the input batch, also while it waits again.
        begun = [r for r in scheduler.waiting if r.status is RequestStatus.PREEMPTED]
        assert len(scheduler.running) + len(begun) <= self.limits.max_num_seqs
        for name, request in self._unsettled.items():
            assert (request.status is RequestStatus.FINISHED) == (name in self.ended)
            assert self.tokens[name] == request.output_token_ids
            assert not (name in self.ended and request.block_ids)
        self._unsettled = {n: r for n, r in self._unsettled.items() if n not in self.ended}

    def _check_sharing(self, holding: list[Request]) -> None:
        size = self.limits.block_size
        texts: dict[int, tuple[int, list[int]]] = {}
        for request in holding:
            for index, block in enumerate(request.block_ids):
                text = request.token_ids(0, (index + 1) * size)
                if block not in texts:
                    texts[block] = (request.num_computed_tokens, text)
                    continue
                computed, other = texts[block]
                assert text == other, f"block {block} is shared by different texts"
                assert len(text) == (index + 1) * size, f"block {block} is shared, but not full"
                assert (index + 1) * size <= min(computed, request.num_computed_tokens)


def parts(harness: Harness) -> list[tuple[str, int, int]]:
    """The last step: request, first token, number of tokens."""
    return [(p.request.request_id, p.start, p.count) for p in harness.last_batch.requests]


def text(length: int, first: int = 0) -> list[int]:
    return [(first + index * index // 3) % (VOCAB - 1) for index in range(length)]


def perfect(drafts: int) -> Drafter:
    def draft(known: Sequence[int]) -> Sequence[int]:
        found: list[int] = []
        for _ in range(drafts):
            found.append(next_token([*known, *found]))
        return found

    return draft
