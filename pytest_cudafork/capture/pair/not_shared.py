"""The check ``not-shared``: persistent inputs lie in the same memory in both passes."""

from __future__ import annotations

import torch

from pytest_cudafork.capture.pair.evidence import Evidence
from pytest_cudafork.capture.state.tensors import storage_of


def check(pair: Evidence) -> None:
    """Compare where persistent inputs lie, and whether the graph uses them."""
    passes = pair.passes
    first, second = passes.persistent(passes.warm), passes.persistent(passes.captured)
    if not first and not second:
        pair.log.cannot("not-shared", "no persistent inputs were given (persistent=)")
        return
    pair.log.did("not-shared")
    for path in sorted({*first, *second}):
        one, two = first.get(path), second.get(path)
        a, b = (0 if t is None else storage_of(t) for t in (one, two))
        if a != b:
            words = f"lies at {a:#x} in the warm-up and at {b:#x} in the capture"
            _report(pair, path, words)
    _by_name(pair, second)
    consequence = {"aliased-state", "lazy-init-skipped"}
    if not any(one.check in consequence for one in pair.log.findings):
        _by_use(pair, first)


def _by_name(pair: Evidence, tensors: dict[str, torch.Tensor]) -> None:
    """Compare with the fields of the states that bear the name of a persistent input."""
    states = (pair.passes.after, "warm-up"), (pair.passes.at_capture, "capture")
    for path, tensor in tensors.items():
        name = path.removeprefix("persistent[").split("]")[0].strip("'\"")
        for snapshot, which in states:
            fields = [
                (field, one)
                for field, one in snapshot.tensors().items()
                if field.endswith((f".{name}", f"[{name!r}]"))
            ]
            here = storage_of(tensor)
            if fields and all(storage_of(one) != here for _, one in fields):
                field, one = fields[0]
                words = f"of the {which} lies at {storage_of(one):#x}, and {path} at {here:#x}"
                _report(pair, field, words)


def _by_use(pair: Evidence, tensors: dict[str, torch.Tensor]) -> None:
    """Compare what the two recordings read."""
    graph = pair.passes.graph
    captured = graph.recording.uses if graph is not None else None
    warm = pair.passes.warmup.uses
    if captured is None or warm is None:
        return
    for path, tensor in tensors.items():
        where = storage_of(tensor)
        before = any(use.pointer == where and use.reads for use in warm)
        used = any(use.pointer == where for use in captured)
        if before and not used:
            _report(pair, path, "was read in the warm-up and is not used in the graph")
        elif not used:
            pair.log.cannot(f"not-shared ({path})", "neither pass reads it")


def _report(pair: Evidence, path: str, words: str) -> None:
    pair.log.add(
        "not-shared",
        f"{path} {words}",
        path=path,
        why="what the program writes into the persistent input before a replay does not reach "
        "the graph, which keeps computing with the contents of the capture",
        todo="build both states as views of the persistent buffer (buffer[:n]), never as "
        "copies; write into it with copy_",
    )
