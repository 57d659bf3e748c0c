"""Copies between host and device within a capture, and work of the host, with CUDA's answers.

``python -m tests.support.host_copies`` prints the answers that CUDA gives here. Those below were
given by an H200 with torch 2.11.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class Places(NamedTuple):
    """Four numbers each, in memory of three kinds: 1 on the device, 2 pinned, 3 on the host."""

    there: Any
    pinned: Any
    plain: Any


class Copy(NamedTuple):
    """What is captured, and what it gives in a replay after all numbers were multiplied by 10."""

    call: Callable[[Places], Any]
    answer: list[Any] | None


REFUSED = None


def put(tensor: Any, key: Any, value: Any) -> Any:
    """Assign, and return what was assigned to."""
    tensor[key] = value
    return tensor


COPIES: Mapping[str, Copy] = {
    "copy_ from pinned": Copy(lambda at: at.there.copy_(at.pinned), REFUSED),
    "copy_ from pinned, not waited for": Copy(
        lambda at: at.there.copy_(at.pinned, non_blocking=True), [20.0, 20.0, 20.0, 20.0]
    ),
    "to, from pinned": Copy(lambda at: at.pinned.to("cuda"), REFUSED),
    "to, from pinned, not waited for": Copy(
        lambda at: at.pinned.to("cuda", non_blocking=True), [20.0, 20.0, 20.0, 20.0]
    ),
    "cuda, from pinned": Copy(lambda at: at.pinned.cuda(), REFUSED),
    "to, from pinned now": Copy(lambda at: at.plain.pin_memory().to("cuda"), REFUSED),
    "to, from pinned now, not waited for": Copy(
        lambda at: at.plain.pin_memory().to("cuda", non_blocking=True), [3.0, 3.0, 3.0, 3.0]
    ),
    "to another type, from pinned": Copy(lambda at: at.pinned.to("cuda", torch.float64), REFUSED),
    "to another type, from pinned, not waited for": Copy(
        lambda at: at.pinned.to("cuda", torch.float64, non_blocking=True), [20.0, 20.0, 20.0, 20.0]
    ),
    "copy_ from every other of pinned, not waited for": Copy(
        lambda at: at.there[:2].copy_(at.pinned[::2], non_blocking=True), REFUSED
    ),
    "copy_ from one of pinned to all, not waited for": Copy(
        lambda at: at.there.copy_(at.pinned[:1], non_blocking=True), REFUSED
    ),
    "copy_ from turned pinned, not waited for": Copy(
        lambda at: at.there.view(2, 2).copy_(at.pinned.view(2, 2).t(), non_blocking=True), REFUSED
    ),
    "copy_ from pinned to every other, not waited for": Copy(
        lambda at: at.there[::2].copy_(at.pinned[:2], non_blocking=True), [20.0, 20.0]
    ),
    "copy_ from pinned to another type, not waited for": Copy(
        lambda at: at.there.view(torch.int32).copy_(at.pinned, non_blocking=True), [20, 20, 20, 20]
    ),
    "to, of every other of pinned, not waited for": Copy(
        lambda at: at.pinned[::2].to("cuda", non_blocking=True), REFUSED
    ),
    "to, of turned pinned, not waited for": Copy(
        lambda at: at.pinned.view(2, 2).t().to("cuda", non_blocking=True),
        [[20.0, 20.0], [20.0, 20.0]],
    ),
    "to another type, of turned pinned, not waited for": Copy(
        lambda at: at.pinned.view(2, 2).t().to("cuda", torch.float64, non_blocking=True), REFUSED
    ),
    "copy_ of nothing from plain": Copy(lambda at: at.there[:0].copy_(at.plain[:0]), []),
    "to, of nothing from plain": Copy(lambda at: at.plain[:0].to("cuda"), []),
    "cpu, of nothing": Copy(lambda at: at.there[:0].cpu(), []),
    "copy_ from plain": Copy(lambda at: at.there.copy_(at.plain), REFUSED),
    "copy_ from plain, not waited for": Copy(
        lambda at: at.there.copy_(at.plain, non_blocking=True), REFUSED
    ),
    "to, from plain": Copy(lambda at: at.plain.to("cuda"), REFUSED),
    "to, from plain, not waited for": Copy(
        lambda at: at.plain.to("cuda", non_blocking=True), REFUSED
    ),
    "copy_ to pinned": Copy(lambda at: at.pinned.copy_(at.there), REFUSED),
    "copy_ to pinned, not waited for": Copy(
        lambda at: at.pinned.copy_(at.there, non_blocking=True), [10.0, 10.0, 10.0, 10.0]
    ),
    "copy_ to every other of pinned, not waited for": Copy(
        lambda at: at.pinned[::2].copy_(at.there[:2], non_blocking=True), REFUSED
    ),
    "copy_ of every other to pinned, not waited for": Copy(
        lambda at: at.pinned[:2].copy_(at.there[::2], non_blocking=True), [10.0, 10.0]
    ),
    "copy_ of another type to pinned, not waited for": Copy(
        lambda at: at.pinned.copy_(at.there.view(torch.int32), non_blocking=True),
        [1092616192.0, 1092616192.0, 1092616192.0, 1092616192.0],
    ),
    "copy_ to plain": Copy(lambda at: at.plain.copy_(at.there), REFUSED),
    "copy_ to plain, not waited for": Copy(
        lambda at: at.plain.copy_(at.there, non_blocking=True), REFUSED
    ),
    "cpu": Copy(lambda at: at.there.cpu(), REFUSED),
    "to the host": Copy(lambda at: at.there.to("cpu"), REFUSED),
    "to the host, not waited for": Copy(
        lambda at: at.there.to("cpu", non_blocking=True), [10.0, 10.0, 10.0, 10.0]
    ),
    "to the host as another type, not waited for": Copy(
        lambda at: at.there.to("cpu", torch.float64, non_blocking=True), [10.0, 10.0, 10.0, 10.0]
    ),
    "to the host, of every other, not waited for": Copy(
        lambda at: at.there[::2].to("cpu", non_blocking=True), [10.0, 10.0]
    ),
    "to the host, turned, not waited for": Copy(
        lambda at: at.there.view(2, 2).t().to("cpu", non_blocking=True),
        [[10.0, 10.0], [10.0, 10.0]],
    ),
    "to the host as another type, turned, not waited for": Copy(
        lambda at: at.there.view(2, 2).t().to("cpu", torch.float64, non_blocking=True), REFUSED
    ),
    "work of the host": Copy(
        lambda at: at.plain.add_(1).cumsum(0) + at.plain[at.plain > 1], [8.0, 12.0, 16.0, 20.0]
    ),
    "a list": Copy(lambda at: torch.tensor([1.0, 2.0]) * 2, [2.0, 4.0]),
    "a list on the device": Copy(lambda at: torch.tensor([1.0, 2.0], device="cuda"), REFUSED),
    "a new tensor of the host": Copy(lambda at: at.plain.new_tensor([1.0, 2.0]), [1.0, 2.0]),
    "a new tensor of the device": Copy(lambda at: at.there.new_tensor([1.0, 2.0]), REFUSED),
    "numbers of the host": Copy(
        lambda at: at.there * at.plain.sum().item() + at.plain[0], [123.0, 123.0, 123.0, 123.0]
    ),
    "numbers of the host in an index": Copy(
        lambda at: at.there[: int(at.plain.sum()) // 6], [10.0, 10.0]
    ),
    "a number of the host as a tensor": Copy(lambda at: at.there.copy_(at.plain.sum()), REFUSED),
    "an index of the host": Copy(lambda at: at.there[torch.tensor([1, 0])], REFUSED),
    "a mask of the host": Copy(lambda at: at.there[at.plain > 1], [10.0, 10.0, 10.0, 10.0]),
    "type_as": Copy(lambda at: at.plain.type_as(at.there), REFUSED),
    "masked_fill by a number of the device": Copy(
        lambda at: at.there.masked_fill(at.there > 5, at.there.sum()), REFUSED
    ),
    "masked_fill by a number of the host": Copy(
        lambda at: at.there.masked_fill(at.there > 5, at.plain[0]), [3.0, 3.0, 3.0, 3.0]
    ),
    "a number of the host to a mask of the device": Copy(
        lambda at: put(at.there, at.there > 5, at.plain[0]), [3.0, 3.0, 3.0, 3.0]
    ),
    "a number of the host to places of the device": Copy(
        lambda at: put(at.there, at.there.long() - 1, at.plain[0]), REFUSED
    ),
    "a number to a mask of the host": Copy(lambda at: put(at.there, at.plain > 1, 5.0), REFUSED),
    "a bound of the host": Copy(lambda at: torch.clamp(at.there, min=at.plain.sum()), REFUSED),
}


def answer(call: Callable[[Places], Any], capture: Callable[[Any], Any], made: Any) -> Any:
    """Capture a call, replay it, and return what it gave; ``REFUSED`` where it is not taken."""
    at = Places(
        torch.ones(4, device="cuda"), torch.full((4,), 2.0).pin_memory(), torch.full((4,), 3.0)
    )
    try:
        with capture(made):
            given = call(at)
    except RuntimeError:
        return REFUSED
    for each in at:
        each.mul_(10)
    others = [torch.full((4,), 9.0).pin_memory() for _ in range(64)]  # in memory that was let go
    made.replay()
    torch.cuda.synchronize()
    assert len(others) == 64
    return given.tolist()


def main() -> None:
    """Print CUDA's answers, and fail if the device is not usable after one."""
    answers = {}
    for name, copy in COPIES.items():
        answers[name] = answer(copy.call, torch.cuda.graph, torch.cuda.CUDAGraph())
        assert torch.ones(4, device="cuda").add(1).tolist() == [2.0] * 4, name
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
