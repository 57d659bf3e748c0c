"""Ranks in lock-step: each has a core with the whole model's bookkeeping, and they do the same.

Rank 0 hears the front end and tells the others what it takes; all of them schedule, compute their
part of the model and sample for themselves. That comes out the same, as every rank gets the same
bits of the logits and nothing of a core depends on time or chance. What each step came to travels
as a number with the word for the next one: ranks that differ are an error, not a wrong text.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Protocol

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import EngineError, RankLostError
from sample_engine.process.messages import (
    MOST_BYTES,
    Abort,
    Add,
    Step,
    Stop,
    ToRank,
    decode_to_rank,
    encode,
)

__all__ = ["LeadingCore", "RankCore", "StepWatch", "follow", "may_be_eager"]

# The longest that a rank listens without sleeping: rank 0 needs a part of it between two steps.
_EAGER_SECONDS = 0.002
_LONGEST_TICK = 1.0
_TICKS = 10


class RankCore(Protocol):
    """What is needed of a core that is one rank's; ``engine_core.EngineCore`` is one."""

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request, or raise ``PromptError``."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""

    def step(self) -> list[CoreOutput]:
        """Compute a step, together with the other ranks."""

    def step_digest(self) -> int:
        """A number of what the last step came to."""

    def has_unfinished(self) -> bool:
        """Whether there is anything to compute."""

    def metrics(self) -> dict[str, Any]:
        """How it goes."""

    def info(self) -> dict[str, Any]:
        """What it has become."""

    def shutdown(self) -> None:
        """Let go of everything, together with the other ranks."""


class StepWatch:
    """Notices a step that does not end, from a thread of its own.

    A sum over ranks waits for all of them: one that is stuck holds up every other. What the clock
    says while the whole process was stopped does not count.
    """

    def __init__(self, seconds: float, tell: Callable[[str, str], None]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._number = 0
        self._under_way = 0  # the number of the step; 0: none
        self._main = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch over steps", daemon=True)
        self._thread.start()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch over the block. For the thread that made this object."""
        self._number += 1
        self._under_way = self._number
        try:
            yield
        finally:
            self._under_way = 0

    def close(self) -> None:
        """End the watch; a process that ends does not need to."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        tick = min(_LONGEST_TICK, self._seconds / _TICKS)
        seen, waited = 0, 0.0
        while not self._over.wait(tick):
            number = self._under_way
            waited = waited + tick if number and number == seen else 0.0
            seen = number
            if waited >= self._seconds:
                frame = _frame_of(self._main)
                stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
                self._tell(f"A step has not ended for {self._seconds:g} seconds.", stack)
                return


def _frame_of(thread: int) -> FrameType | None:
    """Return the frame at which a thread is.

    Before Python 3.12 a garbage collection may begin within ``sys._current_frames``, which holds a
    lock of the interpreter, and code that it runs may wait for that for ever (gh-106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


class LeadingCore:
    """The core of rank 0: what it is told, it tells the others."""

    def __init__(self, core: RankCore, links: Sequence[Connection], watch: StepWatch) -> None:
        self._core = core
        self._links = links
        self._watch = watch

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request, or raise ``PromptError``; then the others do not hear of it."""
        self._core.add_request(request_id, prompt_token_ids, params)
        self._say(Add(request_id, list(prompt_token_ids), params))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self._core.abort(request_ids)
        self._say(Abort(list(request_ids)))

    def step(self) -> list[CoreOutput]:
        """Compute a step."""
        with self._watch.step():
            self._say(Step(self._core.step_digest()))
            return self._core.step()

    def has_unfinished(self) -> bool:
        """Whether there is anything to compute."""
        return self._core.has_unfinished()

    def metrics(self) -> dict[str, Any]:
        """How it goes."""
        return self._core.metrics()

    def info(self) -> dict[str, Any]:
        """What it has become."""
        return self._core.info()

    def shutdown(self) -> None:
        """Let go of everything, on all ranks."""
        self._say(Stop())
        self._core.shutdown()

    def _say(self, message: ToRank) -> None:
        frame = encode(message)
        for rank, link in enumerate(self._links, start=1):
            try:
                link.send_bytes(frame)
            except OSError as error:  # a BlockingIOError, too: it has not listened for a minute
                raise RankLostError(f"Rank {rank} does not hear rank 0: {error}") from error


def follow(core: RankCore, link: Connection, watch: StepWatch, *, eager: bool = False) -> None:
    """Be another rank than 0: do what that says, until it says stop or is gone.

    An ``eager`` rank listens all the time while there is work, for some milliseconds: to be woken
    takes longer than a word does. It needs a processor of its own for that.

    Raises :class:`EngineError` where this rank and rank 0 do not agree on what a step came to.
    """
    while True:
        if eager and core.has_unfinished():
            _look_out(link)
        try:
            message = decode_to_rank(link.recv_bytes(MOST_BYTES))
        except (EOFError, OSError):
            return  # the front end sees what became of rank 0, and says it
        if isinstance(message, Stop):
            core.shutdown()
            return
        if isinstance(message, Add):
            core.add_request(message.request_id, message.prompt_token_ids, message.params)
        elif isinstance(message, Abort):
            core.abort(message.request_ids)
        else:
            own = core.step_digest()
            if own != message.digest:
                raise EngineError(
                    "This rank's last step came to something else than that of rank 0 "
                    f"({own} and {message.digest}): the ranks do not compute the same, so no token "
                    "since can be trusted. Are their GPUs, libraries and sources alike?"
                )
            with watch.step():
                core.step()


def may_be_eager(core: RankCore, ranks: int) -> bool:
    """Whether the ranks compute on GPUs, and this machine has a processor for each and more."""
    on_gpu = str(core.info().get("device")).startswith("cuda")
    return on_gpu and len(os.sched_getaffinity(0)) > ranks


def _look_out(link: Connection) -> None:
    """Return as soon as there is a word, or after some milliseconds; without sleeping."""
    poller = select.poll()
    poller.register(link.fileno(), select.POLLIN)
    until = time.monotonic() + _EAGER_SECONDS
    while not poller.poll(0) and time.monotonic() < until:
        pass
