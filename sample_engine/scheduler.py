"""Which tokens of which requests are computed in the next step. Pure: no tensor, no model.

There is no prefill and no decode here: a request has tokens whose keys and values are not computed
yet, and every step computes some of them, of all requests together at most
``max_num_batched_tokens``. A long prompt is thereby cut into chunks, and drafts are verified as if
they were a short prompt, all of a request's in one step: were they cut to what fits beside other
requests, a seed would not give the same text in every batch.

First come, first served: requests start in the order of their arrival, and when blocks run out the
one that came last gives its blocks back and is computed anew later. So the oldest request always
goes on, and every request ends.

What a batch computes counts as computed, and the tokens that it samples as placeholders, as soon as
it is scheduled. So another step may be scheduled before anybody knows these tokens (asynchronous
steps): a request goes on with its placeholder, unless that token is its last one for sure. If it
turns out to be the last one anyway, what the later step says of the request is dropped.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from sample_engine.batch.outputs import CoreOutput, TokenLogprobs
from sample_engine.batch.request import FinishReason, Request, RequestStatus
from sample_engine.batch.request_limits import SchedulerLimits
from sample_engine.batch.scheduled_batch import (
    NOT_FINITE,
    ScheduledBatch,
    ScheduledRequest,
    StepResult,
)
from sample_engine.errors import EngineError, KVTransferError, NotFiniteError, PromptError
from sample_engine.kv_cache.manager import ExternalBlocks, KVCacheManager

__all__ = ["Scheduler", "SchedulerCounters"]


@dataclasses.dataclass
class SchedulerCounters:
    """What happened so far. ``*_per_position``: of the first, second, ... draft of a step."""

    steps: int = 0
    scheduled_tokens: int = 0
    generated_tokens: int = 0
    finished_requests: int = 0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_cached_tokens: int = 0
    external_queried_tokens: int = 0  # not found here, and looked for in another engine's blocks
    external_cached_tokens: int = 0
    first_tokens: int = 0  # the only ones of their step: nothing is drafted before
    sampling_steps: int = 0  # of each request, those that brought tokens
    drafted_per_position: list[int] = dataclasses.field(default_factory=list)
    accepted_per_position: list[int] = dataclasses.field(default_factory=list)


class Scheduler:
    """Requests that wait and requests that run. It alone changes a request.

    One step is :meth:`schedule`, a run of the model by the caller, :meth:`postprocess`. Without
    drafts one more step may be scheduled before the postprocessing of the one before; results are
    taken in in the order of their steps.
    """

    def __init__(self, limits: SchedulerLimits, external: ExternalBlocks | None = None) -> None:
        self.limits = limits
        self.kv = KVCacheManager(
            limits.num_blocks,
            limits.block_size,
            limits.enable_prefix_caching,
            limits.sees_next_token,
            external,
        )
        self.counters = SchedulerCounters()
        self.waiting: deque[Request] = deque()  # by arrival
        self.running: list[Request] = []  # by arrival, all of it before what waits
        self._requests: dict[str, Request] = {}
        self._refused: list[CoreOutput] = []  # said with the next postprocess

    # What comes in

    def add(self, request: Request) -> None:
        """Queue a request. Raises :class:`PromptError` for one that could never run."""
        if request.request_id in self._requests:
            raise PromptError(
                f"Request id {request.request_id!r} is in use by a request that has not finished: "
                "ids must differ."
            )
        words = self.limits.why_never(request)
        if words:
            raise PromptError(words)
        self._requests[request.request_id] = request
        self.waiting.append(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests at the caller's wish. Ids of requests that have ended or never were: none.

        Nothing more is said of them.
        """
        waited = False
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                waited = waited or request.status is not RequestStatus.RUNNING
                self._finish(request, FinishReason.ABORT)
        self._drop_finished()
        if waited:  # of a text with a stop string, which runs, it would be one pass over all
            self.waiting = deque(r for r in self.waiting if r.status is not RequestStatus.FINISHED)

    def has_unfinished(self) -> bool:
        """Whether another step has something to do or to say."""
        return bool(self._requests or self._refused)

    # Schedule

    def schedule(self) -> ScheduledBatch:
        """The next step's work; blocks for it are given out. Empty when there is nothing to do."""
        budget = self.limits.max_num_batched_tokens
        preemptions = self.counters.preemptions
        parts: list[ScheduledRequest] = []
        index = 0
        while index < len(self.running) and budget:
            request = self.running[index]
            start = request.num_computed_tokens
            stop = _stop_within(request, start, budget)
            if stop == start or self._depends_on_placeholder(request):
                index += 1  # else: its drafts do not fit into what is left of this step
            elif self._go_on(request, stop):
                parts.append(_part(request, start, stop))
                budget -= stop - start
                index += 1
            else:
                self._drop_finished()  # a preempted one has left the list already
        if self.counters.preemptions == preemptions:
            parts += self._start_waiting(budget)
        if parts:
            self.counters.steps += 1
            self.counters.scheduled_tokens += sum(part.count for part in parts)
        for part in parts:
            part.request.num_computed_tokens = part.start + part.count
            part.request.num_output_placeholders += part.samples
        return ScheduledBatch(tuple(parts), self.counters.steps)

    def _depends_on_placeholder(self, request: Request) -> bool:
        """Whether a request can be scheduled only once the token of a step under way is known.

        With that token it ends, or has outgrown the cache if the token does not end it.
        """
        if not request.num_output_placeholders:
            return False
        expected = request.num_expected_tokens
        return expected >= self.limits.most_tokens(request) or not self.limits.fits_cache(expected)

    def _go_on(self, request: Request, stop: int) -> bool:
        """Get a running request its blocks. False: it had to give way, or cannot go on at all."""
        wanted = self._blocks_wanted(request, stop)
        while not self.kv.grow(request, wanted):
            if not self.limits.fits_cache(request.num_tokens):
                self._refuse(request, PromptError(self.limits.why_no_further(request)))
                return False
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return False
        if self.limits.ahead and stop >= request.num_expected_tokens:
            self._grow_ahead(request, stop + self.limits.ahead)
        return True

    def _grow_ahead(self, request: Request, stop: int) -> None:
        """Get a request blocks for its next step, if all that run could get one more besides.

        So the blocks of a step are mostly known on the device before the step is.
        """
        wanted = self.limits.tokens_with_lookahead(request, stop)
        wanted = min(wanted, self.limits.most_tokens(request) - 1)
        if self.kv.num_blocks_for(wanted) == len(request.block_ids):
            return
        if self.kv.pool.num_free > len(self.running):
            self.kv.grow(request, wanted)

    def _blocks_wanted(self, request: Request, stop: int) -> int:
        """Tokens to have blocks for in a step that ends at ``stop``."""
        if not self.limits.lookahead or stop < request.num_expected_tokens:
            return stop  # nothing is drafted where nothing is sampled
        return self.limits.tokens_with_lookahead(request, stop)

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits again, before all that have not started yet.

        Its drafts it keeps: the text must not depend on whether they are verified. The token of a
        step under way is dropped when it comes, and computed anew: it comes out the same.
        """
        self.kv.release(request, forget=False)
        request.num_output_placeholders = 0
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        self.counters.preemptions += 1

    def _start_waiting(self, budget: int) -> list[ScheduledRequest]:
        """Start requests in the order of their arrival, as long as the first of them can."""
        parts: list[ScheduledRequest] = []
        promised = -1  # worked out for the first candidate
        while self.waiting and budget and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            if not self.limits.fits_cache(request.num_tokens):
                self.waiting.popleft()  # it had grown, and then it was preempted
                self._refuse(request, PromptError(self.limits.why_no_further(request)))
                continue
            prefix = self.kv.find_prefix(request)
            start = len(prefix) * self.limits.block_size
            missing = request.num_tokens + len(request.draft_token_ids) - start
            if missing > budget and not self.limits.may_be_cut(missing):
                break
            stop = _stop_within(request, start, budget)
            if stop == start:
                break
            if promised < 0:
                promised = sum(map(self._soon_wanted, self.running))
            wanted = self._soon_wanted(request) - len(prefix)
            if self.running and wanted + promised > self.kv.num_free_besides(prefix):
                break
            if not self._start(self.waiting.popleft(), prefix):
                continue
            start = request.num_computed_tokens
            stop = _stop_within(request, start, budget)
            given = self.kv.grow(request, self._blocks_wanted(request, stop))
            assert given, f"no blocks for {request.request_id!r}, though they were counted"
            promised += self._soon_wanted(request)
            if stop > start:  # else all that is left are drafts that have to wait for the next step
                budget -= stop - start
                parts.append(_part(request, start, stop))
        return parts

    def _start(self, request: Request, prefix: list[int]) -> bool:
        """Let a request run, with all of it that is known. False: it ended instead."""
        self.kv.admit(request, prefix)
        self.counters.prefix_queried_tokens += request.num_tokens
        self.counters.prefix_cached_tokens += request.num_computed_tokens
        try:
            queried, cached = self.kv.load_further(request)
        except KVTransferError as error:
            self._refuse(request, KVTransferError(f"Request {request.request_id!r}: {error}"))
            return False
        self.counters.external_queried_tokens += queried
        self.counters.external_cached_tokens += cached
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        return True

    def _soon_wanted(self, request: Request) -> int:
        """Blocks that a request lacks for its tokens and, if it may become longer, one more.

        A request is started only if they are there for all: else it would be preempted at once.
        """
        longest = self.kv.num_blocks_for(self.limits.most_tokens(request) - 1)
        tokens = request.num_expected_tokens + len(request.draft_token_ids) + self.limits.lookahead
        soon = self.kv.num_blocks_for(tokens) + 1
        return max(0, min(soon, longest) - len(request.block_ids))

    # Postprocess

    def postprocess(self, batch: ScheduledBatch, result: StepResult) -> list[CoreOutput]:
        """Take in what the model said: what is new for each request, in the order of the batch."""
        assert len(result.sampled) == len(batch.requests), (
            f"{len(result.sampled)} results for {len(batch.requests)} requests"
        )
        outputs, self._refused = self._refused, []
        for index, part in enumerate(batch.requests):
            if part.request.status is not RequestStatus.RUNNING:
                continue  # since the step was scheduled it has ended, or had to give way
            sampled = result.sampled[index]
            assert bool(sampled) == part.samples, f"{len(sampled)} tokens sampled for {part}"
            drafts = result.drafts[index] if result.drafts else ()
            new = self._advance(part, sampled, drafts, batch.number)
            if new or part.request.finish_reason is not None:
                logprobs = result.logprobs[index][: len(new)] if result.logprobs else ()
                outputs.append(_output_of(part.request, new, logprobs))
            self.counters.sampling_steps += bool(new)
        self._drop_finished()
        return outputs

    def _advance(
        self, part: ScheduledRequest, sampled: Sequence[int], drafts: Sequence[int], step: int
    ) -> tuple[int, ...]:
        """Bring a request up to date; returns the tokens that are new."""
        request = part.request
        computed = part.start + part.count
        if not sampled:
            self.kv.publish(request, computed)
            return ()
        request.num_output_placeholders -= 1
        if part.num_drafts:
            accepted = len(sampled) - 1
            rejected = part.num_drafts - accepted
            computed -= rejected  # keys and values of other text
            request.num_computed_tokens -= rejected
            self._count_drafts(part.num_drafts, accepted)
        request.draft_token_ids = []
        reason = None
        num_new = 0
        for token in sampled:
            if token == NOT_FINITE:
                self._end_without_numbers(request, num_new, step)
                return tuple(sampled[:num_new])
            request.output_token_ids.append(token)
            num_new += 1
            reason = self._why_finished(request, token)
            if reason is not None:
                computed = min(computed, request.num_tokens)
                break
        self.kv.publish(request, computed)
        self._count_new(request, num_new)
        if reason is not None:
            self._finish(request, reason)
        elif drafts:
            request.draft_token_ids = list(drafts[: self.limits.most_drafts(request)])
        return tuple(sampled[:num_new])

    def _count_new(self, request: Request, num_new: int) -> None:
        self.counters.generated_tokens += num_new
        if num_new and len(request.output_token_ids) == num_new:
            self.counters.first_tokens += 1

    def _end_without_numbers(self, request: Request, num_new: int, step: int) -> None:
        """End a request whose next token cannot be chosen; nobody may use what it has computed."""
        self._count_new(request, num_new)
        self.kv.discard(request)
        request.error_type = NotFiniteError.__name__
        request.error = (
            f"Request {request.request_id!r}: in step {step} of the engine the "
            f"model gave NaN or infinity as logits, for token {len(request.output_token_ids) + 1} "
            f"of the answer, after {request.num_tokens} tokens. The weights may be damaged, or "
            "dtype too narrow for them: float16 ends at 65504, bfloat16 and float32 do not."
        )
        self._finish(request, FinishReason.ERROR)

    def _count_drafts(self, drafted: int, accepted: int) -> None:
        for counts, up_to in (
            (self.counters.drafted_per_position, drafted),
            (self.counters.accepted_per_position, accepted),
        ):
            counts.extend([0] * (drafted - len(counts)))
            for position in range(up_to):
                counts[position] += 1

    def _why_finished(self, request: Request, token: int) -> FinishReason | None:
        if token in request.params.stop_token_ids:
            return FinishReason.STOP
        if self.limits.ends(token) and not request.params.ignore_eos:
            return FinishReason.STOP
        if request.num_tokens >= self.limits.most_tokens(request):
            return FinishReason.LENGTH
        return None

    # Ends

    def _refuse(self, request: Request, why: EngineError) -> None:
        """End a request that cannot go on, with what it has."""
        request.error, request.error_type = str(why), type(why).__name__
        self._finish(request, FinishReason.ERROR)
        self._refused.append(_output_of(request, ()))

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request; the lists are cleared of it by the caller."""
        self.kv.release(request, forget=True)
        request.draft_token_ids = []
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self._requests[request.request_id]
        self.counters.finished_requests += 1

    def _drop_finished(self) -> None:
        if any(request.status is RequestStatus.FINISHED for request in self.running):
            self.running = [r for r in self.running if r.status is not RequestStatus.FINISHED]

    def metrics(self) -> dict[str, Any]:
        """The counters, what follows from them, and how things stand now."""
        counters = self.counters
        decode_steps = counters.sampling_steps - counters.first_tokens
        decode_tokens = counters.generated_tokens - counters.first_tokens
        pairs = zip(counters.accepted_per_position, counters.drafted_per_position, strict=True)
        return {
            **dataclasses.asdict(counters),
            "decode_steps": decode_steps,
            "decode_tokens": decode_tokens,
            "tokens_per_step": decode_tokens / decode_steps if decode_steps else 1.0,
            "acceptance_per_position": [accepted / drafted for accepted, drafted in pairs],
            "running_requests": len(self.running),
            "waiting_requests": len(self.waiting),
            "free_blocks": self.kv.pool.num_free,
            "cached_blocks": len(self.kv.prefix_cache),
        }


def _stop_within(request: Request, start: int, budget: int) -> int:
    """Where a part ends that begins at ``start``; there: nothing of it fits into the budget.

    It holds the last known token and all drafts, or neither: the token is what is sampled after.
    """
    whole = request.num_expected_tokens + len(request.draft_token_ids)
    stop = min(whole, start + budget)
    return stop if stop == whole else min(stop, request.num_expected_tokens - 1)


def _part(request: Request, start: int, stop: int) -> ScheduledRequest:
    drafts = max(0, stop - request.num_tokens) if request.draft_token_ids else 0
    return ScheduledRequest(request, start, stop - start, drafts)


def _output_of(
    request: Request, new: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...] = ()
) -> CoreOutput:
    return CoreOutput(
        request.request_id,
        new,
        request.finish_reason,
        request.num_cached_tokens,
        request.num_preemptions,
        request.error,
        logprobs,
        request.error_type,
    )
