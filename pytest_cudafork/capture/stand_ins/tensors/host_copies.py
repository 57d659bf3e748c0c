"""Copies between host and device within a capture: taken and refused as CUDA does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.seen import watch_in_force
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.stand_ins.capturing.streams import current_capture
from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN

__tracebackhide__ = of_refusals

_MASKS = (torch.bool, torch.uint8)


def check_copy(
    call: str,
    source: Tensor,
    target: Tensor | torch.dtype | None,
    *,
    to_host: bool,
    waits: bool,
) -> None:
    """Refuse, within a capture, copies between host and device that CUDA refuses.

    It takes those from or to pinned memory in one piece that nobody waits for. ``target`` is
    what is written; or the type of a tensor that the call makes (None: that of the source),
    which on the host is pinned where nobody waits for it.
    """
    mode = current_capture()
    if mode is None:
        if to_host:
            tell_of_host_copy(source)
        return
    if not source.numel():
        return
    if isinstance(target, Tensor):
        pinned, copied = KNOWN.is_pinned(target if to_host else source), target
    else:
        pinned = not waits if to_host else KNOWN.is_pinned(source)
        copied = torch.empty_like(source, dtype=target, device="meta")
    if pinned and waits:
        mode.refusals.awaited_copy(call)
    if pinned and not _in_one_piece(source, copied, to_host=to_host):
        mode.refusals.buffered_copy(call)
    if not pinned and to_host:
        mode.refusals.sync(f"{call} of a tensor on the device to the host")
    if not pinned:
        mode.refusals.host_data(f"{call} of a tensor on the host")


def tell_of_host_copy(source: Tensor) -> None:
    """Tell who listens that the host is about to take the values of a tensor of the device."""
    watch = watch_in_force()
    if watch is not None:
        watch.host_copies(source)


def check_copies(targets: Any, sources: Any, non_blocking: bool = False) -> None:
    """Refuse, within a capture, ``torch._foreach_copy_`` as the copies that it is made of."""
    for target, source in zip(targets, sources, strict=False):
        before, after = KNOWN.index_of(source), KNOWN.index_of(target)
        if (before is None) is not (after is None):
            check_copy(
                "_foreach_copy_", source, target, to_host=after is None, waits=not non_blocking
            )


def check_assignment(tensor: Tensor, key: Any, value: Any) -> None:
    """Refuse, within a capture, ``tensor[key] = value`` where it copies between host and device.

    Such a copy is waited for; so is one of a mask of the host. A single number of the host is taken
    by value where a mask of the device says where it goes.
    """
    named = tensors_in(key)
    if any(map(is_host_mask, named)):
        mode = current_capture()
        if mode is not None:
            mode.refusals.host_data("a mask that lies on the host, in an assignment,")
    if not isinstance(value, Tensor):
        return
    before, after = KNOWN.index_of(value), KNOWN.index_of(tensor)
    if (before is None) is (after is None):
        return
    by_mask = bool(named) and all(each.dtype in _MASKS for each in named)
    if before is None and not value.dim() and by_mask:
        return
    check_copy("an assignment", value, tensor, to_host=after is None, waits=True)


def check_in_place(function: Any, args: Any) -> None:
    """Refuse, within a capture, to change a tensor of the host by what lies on the device."""
    name = str(getattr(function, "__name__", ""))
    if not name.endswith("_") or name.endswith("__"):
        return
    mode, changed = current_capture(), args[0] if args else None
    if mode is not None and isinstance(changed, Tensor) and KNOWN.lies_on_host(changed):
        mode.refusals.sync(f"{name}, of a tensor on the host by one on the device,")


def is_host_mask(part: Any) -> bool:
    """Whether a part of an index is a mask on the host, which knows how many places it names."""
    is_mask = isinstance(part, Tensor) and part.dtype in _MASKS
    return is_mask and bool(KNOWN.lies_on_host(part))


def refuse_index(index: Any) -> None:
    """Refuse, within a capture, places that lie on the host."""
    mode = current_capture()
    if mode is None:
        return
    for each in tensors_in(index):
        places = each.dim() and each.dtype not in _MASKS
        if places and KNOWN.lies_on_host(each):
            mode.refusals.host_data("an index that lies on the host")


def _in_one_piece(source: Tensor, copied: Tensor, *, to_host: bool) -> bool:
    """Whether torch copies from one to the other without a buffer on the host.

    It does where all that is copied lies on the host in one block, or in both at the same places.
    """
    same_places = source.shape == copied.shape and source.stride() == copied.stride()
    if same_places and source.dtype == copied.dtype:
        return bool(torch.empty_like(source, device="meta").stride() == source.stride())
    whole = copied if to_host else source.expand(copied.shape)
    return bool(whole.is_contiguous())
