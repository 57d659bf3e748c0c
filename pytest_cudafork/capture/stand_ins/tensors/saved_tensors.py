"""Saving tensors that stand for those of a GPU, and loading tensors to one.

A file says of each where it lay: so it does for these, and what is loaded to a GPU lies there.
``pickle`` saves the memory of tensors in the same way.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.software.places import known_places
from pytest_cudafork.capture.stand_ins.capturing.streams import current_capture
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN
from pytest_cudafork.compat.torch_graphs.tensors import places_of_saved, untyped
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_BEFORE_OTHERS = 0


def put_in_place(undo: UndoStack) -> None:
    """Let torch save and load such tensors, until it is undone."""
    entry = (_BEFORE_OTHERS, _place_of, _put)
    known = places_of_saved()
    known.insert(0, entry)
    undo.callback(known.remove, entry)
    undo.set(torch.UntypedStorage, "cuda", _to_gpu)


def _to_gpu(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """Return a copy of memory on a GPU, as a ``map_location`` asks for; no copy if it is there."""
    index = device if isinstance(device, int) else torch.device(device or "cuda").index or 0
    if KNOWN.index_of_storage(storage) == index:
        return storage
    made = storage.clone()
    KNOWN.note_storage(made, index)
    return made


def _place_of(storage: Any) -> str | None:
    index = KNOWN.index_of_storage(untyped(storage))
    if index is None:
        return None
    capture = current_capture()
    if capture is not None:
        capture.refusals.sync("saving or pickling of a tensor on the device")
    return f"cuda:{index}"


def _put(storage: Any, place: str) -> Any:
    """Return memory that was loaded as memory of a GPU; None: this is not to lie on one here."""
    if not place.startswith("cuda") or known_places() is None:
        return None
    KNOWN.note_storage(storage, torch.device(place).index or 0)
    return storage
