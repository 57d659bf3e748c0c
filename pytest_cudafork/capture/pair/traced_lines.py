"""Finds the line that set something: code is run once more, and traced.

Nothing is traced unless a failure is to be worded: tracing is slow, and other tracers wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.lines import is_foreign, place
from pytest_cudafork.capture.state.snapshot import MISSING, Change, How, Snapshot
from pytest_cudafork.capture.state.state_tree import Kind
from pytest_cudafork.compat.torch_graphs.tensors import version_of


class Slot(NamedTuple):
    """A place in a state that can be read and set: an attribute or an item of its owner."""

    path: str
    owner: Any
    key: Any
    attribute: bool

    def get(self) -> Any:
        """Return what is there; ``MISSING`` if nothing is."""
        try:
            if self.attribute:
                return getattr(self.owner, self.key)
            return self.owner[self.key]
        except (AttributeError, KeyError, IndexError, TypeError):
            return MISSING


def slot_of(change: Change, origin: Snapshot, target: Snapshot) -> Slot | None:
    """Return where in another state the thing lies that changed in the first one.

    Args:
        change: what changed.
        origin: the state in which it did, afterwards.
        target: the other state; it may be the same.

    """
    own = target.entries.get(change.path)
    if own is not None:
        node = own.node
        if node.parent is None:
            return None
        return Slot(change.path, node.parent, node.key, node.attribute)
    parent = origin.by_id.get(id(change.node.parent))
    above = None if parent is None else target.entries.get(parent.path)
    if above is None:
        return None
    return Slot(change.path, above.node.value, change.node.key, change.node.attribute)


class _Tracer:
    """Notes, for each slot, the line after which it held something else."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._open = {number: (slot, _mark(slot)) for number, slot in enumerate(slots)}
        # Kept, so that no other object gets the identity of one that is gone.
        self._first = [slot.get() for slot in slots]
        self._line: dict[FrameType, int] = {}
        self.found: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Be told by the interpreter; ``event`` is a call, as it is installed for all frames."""
        caller = frame.f_back
        if caller in self._line:
            self._look(caller, caller.f_lineno)
        if not self._open or is_foreign(frame.f_code.co_filename):
            return None
        self._line[frame] = frame.f_lineno
        return self._local

    def _local(self, frame: FrameType, event: str, _: Any) -> Any:
        self._look(frame, self._line[frame])
        self._line[frame] = frame.f_lineno
        if event == "return":
            del self._line[frame]
        return self._local if self._open else None

    def _look(self, frame: FrameType, line: int) -> None:
        for number, (slot, mark) in list(self._open.items()):
            if _mark(slot) != mark:
                self.found[slot.path] = place(frame.f_code.co_filename, line)
                del self._open[number]


def _mark(slot: Slot) -> tuple[int, int]:
    value = slot.get()
    if isinstance(value, torch.Tensor):
        return id(value), version_of(value)
    if isinstance(value, dict | list | set):
        return id(value), len(value)
    return id(value), 0


def lines_that_set(run: Callable[[], Any], slots: Sequence[Slot]) -> dict[str, str]:
    """Run something and return, by path, the ``file:line`` that first changed each slot.

    An exception of ``run`` ends the search, and nothing else: the answer is a courtesy.
    """
    tracer = _Tracer(slots)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        run()
    except Exception:
        return tracer.found
    finally:
        sys.settrace(before)
    return tracer.found


def changed_slots(changes: Sequence[Change], origin: Snapshot, target: Snapshot) -> list[Slot]:
    """Return the slots of another state for what was initialized or written in the first one."""
    found = []
    for change in changes:
        if change.how in (How.INITIALIZED, How.WRITTEN) or change.node.kind is Kind.TENSOR:
            slot = slot_of(change, origin, target)
            if slot is not None and slot.key is not None:
                found.append(slot)
    return found
