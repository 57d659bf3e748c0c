"""The listener that counts the replays of a test, and spoils them where it is told to.

Those of processes that a test forks are spoiled there, and counted here.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from pytest_cudafork.capture.in_tests.child_lines import ChildLines
from pytest_cudafork.capture.interface.seen import Listener, SeenCapture
from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, Counted, Order

if TYPE_CHECKING:
    from torch import Tensor

_MOST_BYTES = 1 << 20
"""What is larger is a weight or a cache, and no input that changes from step to step."""
_MOST_INPUTS = 64


class TooManyReplaysError(RuntimeError):
    """A test waits in a loop of replays for what a spoiled one never computes."""


class Replays(Listener):
    """What one process knows of the replays of its tests, one test after the other.

    torch is imported when something is captured, and not before.
    """

    def __init__(self) -> None:
        self._order = Order()
        self._counted = Counted()
        self._children = ChildLines()
        self._test = 0
        """The number of the test, so that a child which outlives its own counts for no other."""
        self._inputs: weakref.WeakKeyDictionary[SeenCapture, list[tuple[Any, Tensor]]] = (
            weakref.WeakKeyDictionary()
        )
        self._before: list[tuple[Any, Tensor]] = []
        self._left: weakref.WeakKeyDictionary[Any, Tensor] = weakref.WeakKeyDictionary()
        """What the last spoiled replay has left in memory of whole numbers."""

    @property
    def counted(self) -> Counted:
        """What the replays of the test have come to, so far."""
        for record in self._children.read():
            if record["test"] == self._test:
                self._counted = self._counted.plus(Counted.read(record["counted"]))
        return self._counted

    def begin(self, order: Order) -> None:
        """Begin with another test, whose replays are to be spoiled as the order says."""
        self._order, self._counted = order, Counted()
        self._test += 1
        self._children.begin()

    def close(self) -> None:
        """Listen no more to children that are still there."""
        self._children.close()

    def _count(self, more: Counted) -> None:
        """Count; a child says so at once, as it may end in any way."""
        self._counted = self._counted.plus(more)
        if self._children.is_child():
            self._children.write({"test": self._test, "counted": more.text()})

    def on_capture_end(self, capture: SeenCapture) -> None:
        """Keep what the inputs hold, to see whether the test changes them."""
        if capture.captured and not self._order.how:
            self._inputs[capture] = _contents(capture)

    def on_replay_begin(self, capture: SeenCapture) -> None:
        """Count it; look whether inputs have changed, or change them.

        Raises:
            TooManyReplaysError: replays are spoiled, and the test asks for one after the other.

        """
        if self._order.how and self._counted.replays >= self._order.most:
            raise TooManyReplaysError(
                f"{self._counted.replays} replays were spoiled, and the test asks for more"
            )
        self._count(Counted(replays=1))
        if self._order.how == CHANGED:
            capture.wait()
            self._before = _contents(capture)
            if _change(self._before):
                self._spoiled()
        elif (
            not self._order.how
            and not self._counted.changes
            and _differ(self._inputs.get(capture, []))
        ):
            self._count(Counted(changes=True))

    def on_capture_elsewhere(self) -> None:
        """Count what cannot be spoiled."""
        self._count(Counted(elsewhere=1))

    def on_unseen_replay(self) -> None:
        """Count what cannot be spoiled."""
        self.on_capture_elsewhere()

    def takes_replay(self, capture: SeenCapture) -> bool:
        """Poison what the graph would write, and do nothing else, if that is the order."""
        if self._order.how != IDLE:
            return False
        if capture.uses is not None:
            capture.wait()
            self._poison(capture)
        self._spoiled()
        return True

    def _poison(self, capture: SeenCapture) -> None:
        """Overwrite what a graph writes: by NaN, and whole numbers by others that are as small.

        What an earlier spoiled replay has left stays: numbers that are others each time would pass
        for those of a replay.
        """
        uses = capture.uses
        with _silently():
            for memory in uses.written() if uses is not None else ():
                if not memory.nbytes:
                    continue
                if memory.dtype.is_floating_point or memory.dtype.is_complex:
                    memory.bytes().fill_(0xFF)
                    continue
                flat, left = memory.flat(), self._left.get(memory)
                if left is None or not left.equal(flat):
                    # an index that is out of range would end the process on a GPU
                    flat.copy_(flat == 0)
                    self._left[memory] = flat.clone()

    def on_replay_end(self, capture: SeenCapture, failed: BaseException | None) -> None:
        """Give the inputs back what they held."""
        before, self._before = self._before, []
        if before:
            capture.wait()
        with _silently():
            for memory, contents in before:
                if memory.held() is not None:
                    memory.bytes().copy_(contents)

    def _spoiled(self) -> None:
        self._count(Counted(spoiled=1))


def _silently() -> contextlib.AbstractContextManager[None]:
    from pytest_cudafork.capture.record.recorder import silently

    return silently()


def _contents(capture: SeenCapture) -> list[tuple[Any, Tensor]]:
    """Return the memory that a graph reads and does not write, with copies of what it holds."""
    uses = capture.uses
    if uses is None:
        return []
    read = [
        memory
        for memory in uses.reads
        if memory not in uses.writes
        and 0 < memory.nbytes <= _MOST_BYTES
        and memory.held() is not None
    ]
    with _silently():
        return [(memory, memory.bytes().clone()) for memory in read[:_MOST_INPUTS]]


def _differ(kept: list[tuple[Any, Tensor]]) -> bool:
    """Whether one of these holds something else now, or is gone."""
    import torch

    with _silently():
        return any(
            memory.held() is None or not torch.equal(memory.bytes(), contents)
            for memory, contents in kept
        )


def _change(before: list[tuple[Any, Tensor]]) -> bool:
    """Change what these hold to other values that are as legal; False: nothing could be."""
    with _silently():
        for memory, _ in before:
            flat = memory.flat()
            if memory.dtype.is_floating_point and memory.dtype.itemsize > 1:
                flat.copy_(flat.flip(0) * -0.5 + 0.25)
            else:  # indices, lengths and masks stay what they may be
                flat.copy_(flat.roll(1))
    return _differ(before)
