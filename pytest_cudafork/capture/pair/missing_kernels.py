"""The check ``missing-kernels``: all work of the warm-up is in the graph."""

from __future__ import annotations

from collections import Counter

from pytest_cudafork.capture.interface.backend import GraphNode, Recording
from pytest_cudafork.capture.pair.evidence import INITIALIZER, Evidence
from pytest_cudafork.capture.replay.kept import Kept, handed_over, inputs_behind
from pytest_cudafork.capture.state.tensors import storage_of
from pytest_cudafork.counted import count_of

_WRONG = frozenset({"aliased-state", "lazy-init-skipped", "replay-differs", "no-op-replay"})


def check(pair: Evidence) -> None:
    """Note which work of the warm-up is not in the graph; whether that is wrong shows later."""
    passes = pair.passes
    assert passes.graph is not None, "nodes are compared when there is a graph"
    pair.kept = handed_over(passes.warmup, passes.graph.recording)
    for recording, which in (
        (passes.warmup, "the warm-up"),
        (passes.graph.recording, "the graph"),
    ):
        if recording.nodes is None:
            why_not = f"the work of {which} is not known: {recording.why_not}"
            pair.log.cannot("missing-kernels", why_not)
            return
    pair.log.did("missing-kernels")
    pair.missing = missing_nodes(passes.warmup, passes.graph.recording)


def missing_nodes(warm: Recording, captured: Recording) -> Counter[tuple[str, str]]:
    """Return the nodes of one recording that the other lacks; copies and the like are left out."""
    kinds = ("op", "triton", "kernel")
    one = Counter(_key(node) for node in warm.nodes or () if node.kind in kinds)
    two = Counter(_key(node) for node in captured.nodes or () if node.kind in kinds)
    return one - two


def _key(node: GraphNode) -> tuple[str, str]:
    """What a node is compared by."""
    return node.kind, node.name


def conclude(pair: Evidence) -> None:
    """Decide about missing work, which alone is no sign: it may be done once per process."""
    passes, missing = pair.passes, pair.missing
    if missing and any(found.check in _WRONG for found in pair.log.findings):
        _report(pair, missing)
        return
    if _report_kept(pair) or not missing:
        return
    assert passes.graph is not None, "there are nodes, so there is a graph"
    kept = [passes.persistent(passes.captured), passes.after.tensors()]
    with passes.fresh(kept) as made:
        second = passes.backend.record(lambda: made.run("NONE", passes.factory.desc))
    again = missing_nodes(second, passes.graph.recording)
    if again:
        _report(pair, again)
    else:
        names = ", ".join(sorted(name for _, name in missing))
        pair.log.note(
            f"the first warm-up did work that a second one on a new state does not do, and that is "
            f"not in the graph: {names}. It is taken for work that is done once per process"
        )


def _report_kept(pair: Evidence) -> bool:
    """Report results of the warm-up that come from inputs and that the graph reads, if any."""
    passes = pair.passes
    inputs = {**pair.varied, **passes.persistent(passes.warm)}
    if pair.kept and not inputs:
        names = ", ".join(dict.fromkeys(one.work.name for one in pair.kept))
        pair.log.cannot(
            "missing-kernels (what the warm-up keeps)",
            f"the graph reads what {names} computed in the warm-up; whether from inputs is not "
            "known without persistent= or vary=",
        )
    stale = [one for one in pair.kept if one.region.pointer not in pair.refreshed]
    found = [
        (one, paths)
        for one, paths in inputs_behind(passes.warmup, stale, inputs)
        if not _is_allowed(pair, one)
    ]
    for one, paths in found[:_MOST]:
        pair.log.add(
            "missing-kernels",
            f"the graph reads {one.region.tensor}, which {one.work.name} computed in the warm-up "
            f"from {', '.join(paths)}; no work in the graph computes it again",
            path=_path_of(pair, one),
            where=one.work.where,
            why=INITIALIZER,
            todo=_TODO,
        )
    return bool(found)


_MOST = 4
_TODO = (
    "compute it in every forward, so that the graph does, or before each replay in a place that "
    "vary calls, too; a flag or a cache that outlives the warm-up must not skip it"
)


def _path_of(pair: Evidence, one: Kept) -> str:
    """Return the path of the tensor in the captured state that lies there; "" if there is none."""
    tensors = {**pair.passes.after_capture.tensors(), **pair.passes.persistent(pair.passes.warm)}
    return next((p for p, t in tensors.items() if storage_of(t) == one.region.pointer), "")


def _is_allowed(pair: Evidence, one: Kept) -> bool:
    for path, tensor in pair.passes.after_capture.tensors().items():
        if storage_of(tensor) == one.region.pointer and pair.passes.allowed.covers(path, tensor):
            return True
    return False


def _report(pair: Evidence, missing: Counter[tuple[str, str]]) -> None:
    """Note work that the graph lacks."""
    count = sum(missing.values())
    names = [f"{name} x{n}" if n > 1 else name for (_, name), n in missing.most_common(8)]
    more = len(missing) - len(names)
    lines = [node.where for node in pair.passes.warmup.nodes or () if _key(node) in missing]
    kernels = count_of(count, "kernel of the warm-up is", "kernels of the warm-up are")
    pair.log.add(
        "missing-kernels",
        f"{kernels} missing from the graph: {', '.join(names)}"
        + (f" and {more} more" if more > 0 else ""),
        where=next(filter(None, lines), ""),
        why=INITIALIZER,
        todo=pair.separate,
    )
