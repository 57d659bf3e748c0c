"""Finds what a graph reads of the warm-up's results and does not compute again itself.

That is right for what is made once (a table, packed weights), and wrong for what was computed from
inputs: a plan, for instance, that the layer keeps although the next batch needs another one. Memory
tells it, wherever the program keeps the result: in an attribute, a cache, a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import Recording, Region, Work
from pytest_cudafork.capture.state.tensors import storage_of


class Kept(NamedTuple):
    """Work of the warm-up, and what it wrote that the graph reads."""

    work: Work
    region: Region


def handed_over(warm: Recording, captured: Recording) -> list[Kept]:
    """Return work of the warm-up whose results the graph reads and never writes.

    Memory that is gone by now is left out, since other memory may have its address. Nothing is
    returned where one of the recordings does not know its work.
    """
    if warm.work is None or captured.work is None:
        return []
    reads, writes = _of_graph(captured.work)
    found: dict[tuple[str, str, int, int], Kept] = {}
    for work in warm.work:
        for region in work.writes:
            if not any(region.overlaps(one) for one in reads.get(region.pointer, ())):
                continue
            again = (
                _key(other) == _key(work) or (other.exact and region.overlaps(one))
                for one, other in writes.get(region.pointer, ())
            )
            if not any(again) and _is_there(region):
                key = (work.name, work.where, region.first, region.end)
                found[key] = Kept(work, region)
    return list(found.values())


def inputs_behind(
    warm: Recording, kept: Iterable[Kept], inputs: Mapping[str, torch.Tensor]
) -> list[tuple[Kept, list[str]]]:
    """Return what of this was computed from inputs, each with the paths of these."""
    sources = {storage_of(tensor): path for path, tensor in inputs.items()}
    sources.pop(0, None)
    behind: dict[int, dict[str, None]] = {}  # of each storage
    of_work: dict[int, dict[str, None]] = {}
    for work in warm.work or ():
        paths: dict[str, None] = {}
        for region in work.reads:
            if region.pointer in sources and _is_there(region):
                paths[sources[region.pointer]] = None
            paths.update(behind.get(region.storage, {}))
        of_work[id(work)] = paths
        for region in work.writes if paths else ():
            # What an inexact piece of work only reads would seem to be written from inputs.
            if work.exact or region.pointer not in sources:
                behind.setdefault(region.storage, {}).update(paths)
    found = []
    for one in kept:
        paths = of_work.get(id(one.work), {})
        if paths and (one.work.exact or one.region.pointer not in sources):
            found.append((one, list(paths)))
    return found


def read_from_before(recording: Recording) -> set[int] | None:
    """Return the storages of which recorded work reads what was there before it; None: unknown."""
    if recording.work is None:
        return None
    return set(_of_graph(recording.work)[0])


def _of_graph(
    work: Iterable[Work],
) -> tuple[dict[int, list[Region]], dict[int, list[tuple[Region, Work]]]]:
    """Return by storage what a graph reads that it has not written before, and what it writes."""
    reads: dict[int, list[Region]] = {}
    writes: dict[int, list[tuple[Region, Work]]] = {}
    for one in work:
        for region in one.reads:
            before = writes.get(region.pointer, ())
            if not any(other.exact and _within(region, written) for written, other in before):
                reads.setdefault(region.pointer, []).append(region)
        for region in one.writes:
            writes.setdefault(region.pointer, []).append((region, one))
    return reads, writes


def _is_there(region: Region) -> bool:
    """Whether its memory was not freed since; if it was, other memory may have its address."""
    storage = region.find()
    return storage is not None and storage.data_ptr() == region.pointer


def _key(work: Work) -> tuple[str, str]:
    return work.name, work.where


def _within(one: Region, other: Region) -> bool:
    return other.first <= one.first and one.end <= other.end
