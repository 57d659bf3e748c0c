"""The scheduler's harness with a step under way: what comes of a batch is taken in a step later."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import FinishReason, Request, RequestStatus
from sample_engine.batch.request_limits import SchedulerLimits
from sample_engine.batch.scheduled_batch import (
    NOT_FINITE,
    ScheduledBatch,
    ScheduledRequest,
    StepResult,
)
from tests.engine.support.scheduler import Drafter, FakeModel, Harness

__all__ = ["AsyncHarness", "AsyncModel"]


class AsyncModel(FakeModel):
    """Feeds the tokens of a batch to the next one itself, as the device does."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._chosen: dict[int, int] = {}  # of the last batch, by arrival
        self.broken: set[str] = set()  # requests of which the next token is not finite

    def run(self, batch: ScheduledBatch, drafter: Drafter | None = None) -> StepResult:
        assert drafter is None, "nothing is drafted while steps are under way"
        result = super().run(batch)
        pairs = zip(batch.requests, result.sampled, strict=True)
        self._chosen = {part.request.arrival: new[0] for part, new in pairs if new}
        sampled = tuple(
            (NOT_FINITE,) if new and part.request.request_id in self.broken else new
            for part, new in zip(batch.requests, result.sampled, strict=True)
        )
        return dataclasses.replace(result, sampled=sampled)

    def text(self, part: ScheduledRequest, stop: int) -> list[int]:
        known = super().text(part, stop)
        if len(known) < stop:
            known.append(self._chosen[part.request.arrival])
        return known


class AsyncHarness(Harness):
    """A step schedules and runs a batch, and takes in what came of the one before."""

    def __init__(
        self, within: SchedulerLimits, shared: dict[bytes, list[int]] | None = None
    ) -> None:
        super().__init__(within, None, shared)
        self.under_way: list[tuple[ScheduledBatch, StepResult]] = []
        self.most_under_way = 0

    def _make_model(self, block_size: int) -> AsyncModel:
        self.device = AsyncModel(block_size)
        return self.device

    def step(self) -> list[CoreOutput]:
        alive = self._alive()
        self.last_batch = batch = self.scheduler.schedule()
        self._check_batch(batch, alive)
        if batch.requests:
            self.under_way.append((batch, self.device.run(batch)))
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        taken: tuple[ScheduledBatch, StepResult] = (ScheduledBatch(()), StepResult((), ()))
        if len(self.under_way) > bool(batch.requests):
            taken = self.under_way.pop(0)
        outputs = self._postprocess(*taken)
        assert bool(outputs or batch.requests or taken[0].requests) or not alive, "no progress"
        self.check()
        return outputs

    def run(self, most_steps: int = 10_000) -> None:
        super().run(most_steps)
        while self.under_way:  # steps of requests that had ended
            assert not self.step()

    def check(self) -> None:
        super().check()
        placeholders = Counter(
            part.request.arrival
            for batch, _ in self.under_way
            for part in batch.requests
            if part.samples and part.request.status is RequestStatus.RUNNING
        )
        for request in self.scheduler.running:
            assert request.num_output_placeholders == placeholders[request.arrival] <= 1
        for request in self.scheduler.waiting:
            assert not request.num_output_placeholders

    def _must_go_on(self, oldest: Request) -> bool:
        """Unless it depends on a token under way whether it goes on at all."""
        under_way = sum(
            part.request is oldest and part.samples
            for batch, _ in self.under_way
            for part in batch.requests
        )
        expected = oldest.num_tokens + under_way
        return not under_way or (
            expected < self.limits.most_tokens(oldest) and self.limits.fits_cache(expected)
        )

    def _take(self, output: CoreOutput) -> None:
        name, reason = output.request_id, output.finish_reason
        if name not in self.device.broken or reason is not FinishReason.ERROR:
            super()._take(output)
            return
        assert name not in self.ended
        assert not output.new_token_ids
        self.ended[name] = reason


def ids(batches: Sequence[ScheduledBatch]) -> list[list[str]]:
    """The requests of each batch."""
    return [[part.request.request_id for part in batch.requests] for batch in batches]
