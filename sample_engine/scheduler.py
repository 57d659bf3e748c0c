"""Which tokens of which requests are computed in the next step. Pure: it knows no tensor, no model.

There is no prefill and no decode here: a request has tokens whose keys and values are not computed
yet, and every step computes some of them, of all requests together at most
``max_num_batched_tokens``. A long prompt is thereby cut into chunks, and drafts are verified as if
they were a short prompt.

First come, first served: requests start in the order of their arrival, and when blocks run out the
one that came last gives its blocks back and is computed anew later. So the oldest request always
goes on, and every request ends.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from sample_engine.batch import ScheduledBatch, ScheduledRequest, StepResult
from sample_engine.errors import PromptError
from sample_engine.kv_cache.manager import KVCacheManager
from sample_engine.limits import SchedulerLimits
from sample_engine.outputs import CoreOutput
from sample_engine.request import FinishReason, Request, RequestStatus

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
    drafted_per_position: list[int] = dataclasses.field(default_factory=list)
    accepted_per_position: list[int] = dataclasses.field(default_factory=list)


class Scheduler:
    """Requests that wait and requests that run. One step is :meth:`schedule`, then :meth:`update`.

    It alone changes a request. The caller runs the model in between.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.kv = KVCacheManager(limits.num_blocks, limits.block_size, limits.enable_prefix_caching)
        self.counters = SchedulerCounters()
        self.waiting: deque[Request] = deque()  # by arrival
        self.running: list[Request] = []  # by arrival, all of it before what waits
        self._requests: dict[str, Request] = {}
        self._refused: list[CoreOutput] = []  # said with the next update

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
        ended = False
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request, FinishReason.ABORT)
                ended = True
        if ended:
            self._drop_finished()
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
            part = self._go_on(self.running[index], budget)
            if part is not None:
                parts.append(part)
                budget -= part.count
                index += 1
            else:
                self._drop_finished()  # a preempted one has left the list already
        if self.counters.preemptions == preemptions:
            parts += self._start_waiting(budget)
        if parts:
            self.counters.steps += 1
            self.counters.scheduled_tokens += sum(part.count for part in parts)
        return ScheduledBatch(tuple(parts))

    def _go_on(self, request: Request, budget: int) -> ScheduledRequest | None:
        """The next part of a running request. None: it had to give way, or cannot go on at all."""
        start = request.num_computed_tokens
        num_tokens = request.num_tokens
        stop = min(num_tokens + len(request.draft_token_ids), start + budget)
        if not self.kv.grow(request, stop):
            # A draft is a guess: it is not worth another request's blocks.
            stop = min(stop, num_tokens)
            while not self.kv.grow(request, stop):
                if not self.limits.fits_cache(num_tokens):
                    self._refuse(request)
                    return None
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    return None
        return ScheduledRequest(request, start, stop - start, max(0, stop - num_tokens))

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits again, before all that have not started yet."""
        self.kv.release(request, forget=False)
        request.draft_token_ids = []
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
            prefix = self.kv.find_prefix(request)
            start = len(prefix) * self.limits.block_size
            missing = request.num_tokens - start
            if missing > budget and not self.limits.may_be_cut(missing):
                break
            if promised < 0:
                promised = sum(map(self._soon_wanted, self.running))
            wanted = self._soon_wanted(request) - len(prefix)
            if self.running and wanted + promised > self.kv.num_free_besides(prefix):
                break
            self._start(self.waiting.popleft(), prefix)
            stop = start + min(missing, budget)
            given = self.kv.grow(request, stop)
            assert given, f"no blocks for {request.request_id!r}, though they were counted"
            promised += self._soon_wanted(request)
            budget -= stop - start
            parts.append(ScheduledRequest(request, start, stop - start))
        return parts

    def _start(self, request: Request, prefix: list[int]) -> None:
        self.kv.admit(request, prefix)
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
        self.counters.prefix_queried_tokens += request.num_tokens
        self.counters.prefix_cached_tokens += request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)

    def _soon_wanted(self, request: Request) -> int:
        """Blocks that a request lacks for its tokens and, if it may become longer, one more.

        A request is started only if they are there for all: else it would be preempted at once.
        """
        longest = self.kv.num_blocks_for(self.limits.most_tokens(request) - 1)
        soon = self.kv.num_blocks_for(request.num_tokens) + 1
        return max(0, min(soon, longest) - len(request.block_ids))

    # Update

    def update(self, batch: ScheduledBatch, result: StepResult) -> list[CoreOutput]:
        """Take in what the model said: what is new for each request, in the order of the batch."""
        assert len(result.sampled) == len(batch.requests), (
            f"{len(result.sampled)} results for {len(batch.requests)} requests"
        )
        outputs, self._refused = self._refused, []
        for index, part in enumerate(batch.requests):
            if part.request.status is not RequestStatus.RUNNING:
                continue  # aborted in the meantime
            sampled = result.sampled[index]
            assert bool(sampled) == part.samples, f"{len(sampled)} tokens sampled for {part}"
            drafts = result.drafts[index] if result.drafts else ()
            new = self._advance(part, sampled, drafts)
            if new:
                outputs.append(_said(part.request, new))
        self._drop_finished()
        return outputs

    def _advance(
        self, part: ScheduledRequest, sampled: Sequence[int], drafts: Sequence[int]
    ) -> tuple[int, ...]:
        """Bring a request up to date; returns the tokens that are new."""
        request = part.request
        computed = part.start + part.count
        if part.num_drafts:
            accepted = len(sampled) - 1
            computed -= part.num_drafts - accepted  # keys and values of other text
            self._count_drafts(part.num_drafts, accepted)
        request.draft_token_ids = []
        reason = None
        num_new = 0
        for token in sampled:
            request.output_token_ids.append(token)
            num_new += 1
            reason = self._why_finished(request, token)
            if reason is not None:
                computed = min(computed, request.num_tokens)
                break
        request.num_computed_tokens = computed
        self.kv.publish(request)
        self.counters.generated_tokens += num_new
        if reason is not None:
            self._finish(request, reason)
        elif drafts:
            # The token after the last draft comes without: with it no limit may be passed.
            useful = self.limits.most_tokens(request) - request.num_tokens - 1
            request.draft_token_ids = list(drafts[: max(0, useful)])
        return tuple(sampled[:num_new])

    def _count_drafts(self, drafted: int, accepted: int) -> None:
        for counts, up_to in (
            (self.counters.drafted_per_position, drafted),
            (self.counters.accepted_per_position, accepted),
        ):
            counts.extend([0] * (drafted - len(counts)))
            for position in range(up_to):
                counts[position] += 1

    def _why_finished(self, request: Request, token: int) -> FinishReason | None:
        if token == self.limits.eos_token_id and not request.params.ignore_eos:
            return FinishReason.STOP
        if request.num_tokens >= self.limits.most_tokens(request):
            return FinishReason.LENGTH
        return None

    # Ends

    def _refuse(self, request: Request) -> None:
        """End a request that has outgrown the whole cache, with what it has."""
        request.error = self.limits.why_no_further(request)
        self._finish(request, FinishReason.ERROR)
        self._refused.append(_said(request, ()))

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
        """The counters, and how things stand now."""
        return {
            **dataclasses.asdict(self.counters),
            "running_requests": len(self.running),
            "waiting_requests": len(self.waiting),
            "free_blocks": self.kv.pool.num_free,
            "cached_blocks": len(self.kv.prefix_cache),
        }


def _said(request: Request, new: tuple[int, ...]) -> CoreOutput:
    return CoreOutput(
        request.request_id,
        new,
        request.finish_reason,
        request.num_cached_tokens,
        request.num_preemptions,
        request.error,
    )
