"""The listener that keeps the history, and gives each capture the uses of its graph."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_cudafork.capture.cuda.memory import allocator_map
from pytest_cudafork.capture.interface.seen import Listener, SeenCapture
from pytest_cudafork.capture.interface.weak_tensors import swaps_let_pass
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.launches import Launches
from pytest_cudafork.capture.record.mode import HistoryMode
from pytest_cudafork.capture.record.optimizers import OptimizerStep, numbers_of, steps_told
from pytest_cudafork.capture.record.tracing import tracing_let_pass
from pytest_cudafork.capture.record.uses import GraphUses
from pytest_cudafork.capture.record.values import Write, unknown_operation
from pytest_cudafork.compat.torch_graphs.modes import count_modes, without_dispatch
from pytest_cudafork.compat.torch_graphs.operators import without_torch_function
from pytest_cudafork.observe.base.after_import import Failed

Later = Callable[[Callable[[], None]], Callable[[], None]]
REPLAY = "a replay"
"""Stands for the line of a write that a replay has made."""


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """Let no mode see operators, for the length of a ``with``; they are none of the user's."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        without_torch_function(),
        without_dispatch(),
    ):
        yield


class Recorder(Listener):
    """Sees operators while it is in force, those of captures by a mode of their own.

    Args:
        everything: keep all chains, not only those that begin in whole numbers.
        outside: whether operators outside of captures are of interest at all.

    """

    def __init__(self, *, everything: bool = False, outside: bool = True) -> None:
        self.history = History(everything=everything)
        self._outside = outside
        self._launches = Launches(self.history)
        self._open: contextlib.ExitStack | None = None
        self._failed: Failed | None = None
        self._capture: SeenCapture | None = None

    @contextlib.contextmanager
    def in_force(self, later: Later | None = None, failed: Failed | None = None) -> Iterator[None]:
        """See the operators of this thread, for the length of a ``with``.

        Args:
            later: Those outside of captures are seen once it calls what it is given; it returns
                what takes that back. None: they are seen at once.
            failed: Hears of a kind of launch that cannot be seen; None: it is a warning.

        """
        self._failed = failed
        with contextlib.ExitStack() as stack:
            stack.enter_context(swaps_let_pass())
            stack.enter_context(tracing_let_pass(self.history))

            def see() -> None:
                self.history.missed = True  # what ran until now
                if not count_modes():  # modes end in the order of their beginning
                    self._see_in(stack)

            if self._outside and later is not None:
                stack.callback(later(see))
            elif self._outside:
                self._see_in(stack)
            try:
                yield
            finally:
                self._close()

    def _see_in(self, stack: contextlib.ExitStack, capture: SeenCapture | None = None) -> None:
        """See operators and launches until a stack is closed."""
        stack.enter_context(HistoryMode(self.history, capture))
        stack.enter_context(self._launches.noted(self._failed))

    def another_test_begins(self) -> None:
        """Forget what lines did in the test before: its numbers and runs are none of this one's.

        What is still wrong is told of this one, too.
        """
        history = self.history
        history.told.clear()
        history.uncomputed.another_test_begins()
        history.host.clear()
        history.latest.clear()
        history.numbers.forget_runs()

    def on_capture_begin(self, capture: SeenCapture) -> None:
        """Put a mode on top of that of the capture; within another one nothing is known of it."""
        if self._open is not None:
            return
        self._capture = capture
        self.history.at += 1
        capture.uses = self.history.uses = GraphUses(self.history.at)
        self._open = contextlib.ExitStack()
        self._open.callback(steps_told(self._on_step))
        self._see_in(self._open, capture)

    def _on_step(self, optimizer: Any) -> None:
        """Note the numbers by which an optimizer takes a step within the capture."""
        uses = self.history.uses
        if uses is not None:
            numbers, where = numbers_of(optimizer), self.history.line()
            uses.steps.append(OptimizerStep(weakref.ref(optimizer), numbers, where))

    def on_capture_closing(self, capture: SeenCapture) -> None:
        """Take it off again; what ends a capture is none of the user's work."""
        if capture is self._capture:
            self._close()
            self.history.paused = True

    def _close(self) -> None:
        stack, self._open = self._open, None
        self.history.uses = None
        if stack is not None:
            stack.close()

    def on_capture_end(self, capture: SeenCapture) -> None:
        """Note what lives on of what the capture made, and the host's numbers in it."""
        history, uses = self.history, capture.uses
        if capture is not self._capture:
            return
        history.paused, self._capture = False, None
        if capture.work and not uses.work and not uses.not_seen:
            uses.not_seen = (
                f"the {capture.work} kernels and copies in it passed no operator of torch"
            )
        if uses.met and capture.captured and capture.backend == "cuda":
            now = allocator_map()
            uses.owns_of_pool(lambda address: now.pool_of(address) == capture.pool)
        known = list(history.memories.known.values())
        uses.made = [memory for memory in known if memory.owner is uses]
        uses.differing = history.numbers.differing(uses.calls)
        known_lines = (history.latest.get(each, 0) for each in uses.lines)
        uses.began = next((at for at in known_lines if at), 0)
        history.numbers.captured(uses.calls)
        uses.host = [
            each for each in history.host if each.value in uses.numbers and each.value not in _USUAL
        ]
        uses.ended = history.at
        history.at += 1

    def on_replay_begin(self, capture: SeenCapture) -> None:
        """Take no notice of how a graph is run."""
        self.history.paused = True

    def on_replay_end(self, capture: SeenCapture, failed: BaseException | None) -> None:
        """Note that the graph has written what it writes."""
        history, uses = self.history, capture.uses
        history.paused = False
        if uses is None:
            return
        history.at += 1
        for memory in (*uses.writes, *uses.made):
            memory.version += 1
            memory.where, memory.at, memory.live, memory.filled = REPLAY, history.at, False, -1
            memory.activation = False
            memory.writes = (Write(unknown_operation(), 0, None),)
            history.uncomputed.filled(memory)

    def on_replay_elsewhere(self, capture: SeenCapture) -> None:
        """Note that the results of a graph hold values; no more, as another thread is at work."""
        uses = capture.uses
        for memory in () if uses is None else (*uses.writes, *uses.made):
            self.history.uncomputed.filled(memory)

    def on_host_copy(self, tensor: Any) -> None:
        """Note that the host takes values, which no operator says of a stand-in's tensor."""
        history = self.history
        if history.paused:
            return
        memory = history.memories.get(tensor)
        if memory is not None:
            history.tell_of_read(memory)
        if history.uncomputed.waits:
            history.uncomputed.host_reads(tensor, history.line)

    def on_own_check_begin(self) -> None:
        """Take no notice of what the check runs."""
        self.history.paused = True

    def on_own_check(self) -> None:
        """Know only what memory there is: the check may have changed all of it."""
        self.history.paused = False
        self.history.forget()


_USUAL = (0, 1, -1)
"""Numbers that are in every graph, whatever the host has read."""
