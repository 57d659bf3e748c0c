"""Whether a stale value matters: the graph is run with what is there, and with what would be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.again import Again
from pytest_cudafork.capture.record.memory import Memory
from pytest_cudafork.capture.record.recorder import silently
from pytest_cudafork.capture.record.values import Write

_MOST = 256 << 20
"""Bytes that a graph may write for it to be tried."""


def is_harmless(capture: SeenCapture, memory: Memory, write: Write, again: Again) -> bool:
    """Whether a graph gives the same results with what a write would write now.

    All that the graph writes is put back. False where it cannot be tried.
    """
    uses = capture.uses
    mine = uses.written()
    if not mine or sum(each.nbytes for each in mine) > _MOST or uses.not_seen:
        return False
    with silently():
        capture.wait()
        held = memory.bytes()
        former = held.clone()
        try:
            before = results_of(capture, mine)
            assert write.part is not None, "what can be computed again covers a part"
            write.part.view(memory.held(), memory.device).copy_(again.result(write))
            after = results_of(capture, mine)
        except Exception:  # an index that is out of range now, for instance
            return False
        finally:
            held.copy_(former)
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def results_of(capture: SeenCapture, mine: list[Memory]) -> list[Tensor]:
    """Return what a graph leaves in memory, and put back what was there."""
    held = [each.bytes() for each in mine]
    former = [each.clone() for each in held]
    try:
        with random_numbers_restored(held[0].device):
            capture.run()
        capture.wait()
        return [each.clone() for each in held]
    finally:
        for now, then in zip(held, former, strict=True):
            now.copy_(then)


@contextlib.contextmanager
def random_numbers_restored(device: torch.device) -> Iterator[None]:
    """Put the generators of the CPU and of a device back at the end of a ``with``."""
    cpu = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)
