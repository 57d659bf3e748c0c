"""The check ``wrong-contents``: the contents of the captured state belong to its descriptor.

What a descriptor means is not known here: the factory is asked again, and its states are compared.
"""

from __future__ import annotations

import torch

from pytest_cudafork.capture.interface.backend import describe
from pytest_cudafork.capture.pair.evidence import Evidence
from pytest_cudafork.capture.replay.factory import fields_of
from pytest_cudafork.capture.replay.observed import filling
from pytest_cudafork.capture.state.aliasing import Allowed, shared_objects
from pytest_cudafork.capture.state.compare import number, short
from pytest_cudafork.capture.state.reach import reachable
from pytest_cudafork.capture.state.snapshot import Entry, Snapshot, same, words_of
from pytest_cudafork.capture.state.state_tree import Kind
from pytest_cudafork.capture.state.tensors import Randomness, Saved, has_memory, storage_of

_WHY = (
    "the graph is captured with the contents of another batch: sizes and indexes that were right "
    "there read out of bounds or the wrong memory here"
)
_TODO = (
    "rebuild the state's contents right before this descriptor is captured, in memory that no "
    "later build overwrites; inputs that are meant to be overwritten belong in persistent="
)


def check(pair: Evidence) -> None:
    """Compare the captured state with what the factory says now, and with the descriptor."""
    if not pair.passes.warm.own_state:
        pair.log.cannot("wrong-contents", "the factory returns no state")
        return
    pair.log.did("wrong-contents")
    contents = _Contents(pair)
    contents.check()
    if pair.arguments.other_descs:
        pair.after_vary = contents.overwritten_now


class _Contents:
    """The captured state, its persistent inputs left out."""

    def __init__(self, pair: Evidence) -> None:
        self._passes, self._log = pair.passes, pair.log
        self._first_inputs = pair.first_inputs
        self._other_descs = pair.arguments.other_descs
        tensors = self._passes.persistent(self._passes.captured).values()
        self._inputs = {storage_of(tensor) for tensor in tensors}

    def check(self) -> None:
        """Compare with all that there is."""
        self._against_descriptor()
        if self._passes.complaint:
            self._wrong(self._passes.name, self._passes.complaint)
        self._overwritten()
        self._first_inputs.restore()
        self._against_fresh()

    def _against_descriptor(self) -> None:
        """Compare whole numbers of the state with those of the same name of the descriptor."""
        for name, wanted in fields_of(self._passes.factory.desc).items():
            if type(wanted) is not int:
                continue
            for path, entry in self._passes.at_capture.entries.items():
                depth = path.count(".") + path.count("[")
                named = path.endswith((f".{name}", f"[{name!r}]"))
                if not named or depth > 3 or type(entry.value) is not int:
                    continue
                if entry.value != wanted and not self._passes.allowed.covers(path, entry.value):
                    self._wrong(path, f"{path} is {entry.value}, and {name} of desc is {wanted}")

    def overwritten_now(self) -> None:
        """Look for that again with the present contents of the inputs, and put all back."""
        passes = self._passes
        carried = reachable(passes.factory.create).tensors
        saved = Saved(passes.persistent(passes.captured), passes.after_capture.tensors(), carried)
        drawn = Randomness(cuda=passes.backend.name == "cuda")
        self._overwritten()
        saved.restore()
        drawn.restore()

    def _overwritten(self) -> None:
        """See whether a state of another descriptor lies where the captured one does."""
        passes = self._passes
        for other in self._other_descs:
            before = Snapshot(passes.captured.state, passes.name)
            made = passes.factory.build(warmup=False, desc=other)
            after = Snapshot(passes.captured.state, passes.name)
            for path, entry in after.entries.items():
                old = before.entries.get(path)
                if old is None or same(old, entry) or self._is_meant(path, entry):
                    continue
                self._wrong(
                    path,
                    f"{path} held {words_of(old)} and holds {words_of(entry)} since the factory "
                    f"was called for {short(other)}",
                )
            del made

    def _against_fresh(self) -> None:
        """Compare with two states that are built now; where they differ, nothing is known."""
        passes = self._passes
        with filling(0):
            one = passes.snapshot(passes.factory.build(warmup=False))
        if shared_objects(one, passes.after_capture, Allowed(())):
            self._log.cannot(
                "wrong-contents (against a new state)",
                "the factory hands out states that it keeps; give other_descs= or belongs=",
            )
            return
        with filling(1):
            two = passes.snapshot(passes.factory.build(warmup=False))
        for path, entry in passes.at_capture.entries.items():
            first, second = one.entries.get(path), two.entries.get(path)
            if first is None or second is None or self._is_meant(path, entry):
                continue
            words = _differs(entry, first, second)
            if words:
                self._wrong(path, f"{path} {words}")

    def _is_meant(self, path: str, entry: Entry) -> bool:
        value = entry.node.value
        if isinstance(value, torch.Tensor) and storage_of(value) in self._inputs:
            return True
        return self._passes.allowed.covers(path, value)

    def _wrong(self, path: str, what: str) -> None:
        self._log.add("wrong-contents", what, path=path, why=_WHY, todo=_TODO)


def _differs(captured: Entry, one: Entry, two: Entry) -> str:
    """Say how an entry differs from two new ones that agree; "" if it does not."""
    values = captured.value, one.value, two.value
    if all(isinstance(value, torch.Tensor) for value in values):
        return _tensor_differs(*values)
    kinds = {captured.node.kind, one.node.kind, two.node.kind}
    if kinds != {Kind.VALUE} or not same(one, two) or same(captured, one):
        return ""
    return f"is {words_of(captured)} in the captured state; built now it is {words_of(one)}"


def _tensor_differs(captured: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> str:
    if one.shape != two.shape or one.dtype != two.dtype:
        return ""
    if captured.shape != one.shape or captured.dtype != one.dtype:
        return f"is {describe(captured)} in the captured state; built now it is {describe(one)}"
    if not has_memory(captured):
        return ""
    known = (one == two) | ((one != one) & (two != two))
    bad = known & (captured != one) & ~((captured != captured) & (one != one))
    if not bool(bad.any()):
        return ""
    flat = int(bad.reshape(-1).to(torch.uint8).argmax())
    a, b = captured.reshape(-1)[flat].item(), one.reshape(-1)[flat].item()
    return (
        f"({describe(captured)}) differs in {int(bad.sum())} of {bad.numel()} elements from a "
        f"state built now: first {number(a)} in the captured one, {number(b)} in the new one "
        f"(element {flat})"
    )
