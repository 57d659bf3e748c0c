"""The check ``missing-kernels``: all work of the warm-up is in the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_cudafork.capture.pair.evidence import INITIALIZER, Evidence
from pytest_cudafork.capture.replay.missing import inputs_read_by, key, missing_nodes

_WRONG = frozenset({"aliased-state", "lazy-init-skipped", "replay-differs", "no-op-replay"})


def check(pair: Evidence) -> None:
    """Note which work of the warm-up is not in the graph; whether that is wrong shows later."""
    passes = pair.passes
    assert passes.graph is not None, "nodes are compared when there is a graph"
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


def conclude(pair: Evidence) -> None:
    """Decide about missing work, which alone is no sign: it may be done once per process."""
    passes, missing = pair.passes, pair.missing
    if not missing:
        return
    if any(found.check in _WRONG for found in pair.log.findings):
        _report(pair, missing)
        return
    assert passes.graph is not None, "there are nodes, so there is a graph"
    first_inputs = passes.persistent(passes.warm)
    inputs = inputs_read_by(missing, passes.warmup, passes.graph.recording, first_inputs)
    if inputs:
        _report(pair, missing, inputs)
        return
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


def _report(pair: Evidence, missing: Counter[tuple[str, str]], inputs: Sequence[str] = ()) -> None:
    """Note work that the graph lacks, and which inputs it read."""
    count = sum(missing.values())
    names = [f"{name} x{n}" if n > 1 else name for (_, name), n in missing.most_common(8)]
    more = len(missing) - len(names)
    lines = [node.where for node in pair.passes.warmup.nodes or () if key(node) in missing]
    verb = "kernel of the warm-up is" if count == 1 else "kernels of the warm-up are"
    pair.log.add(
        "missing-kernels",
        f"{count} {verb} missing from the graph: {', '.join(names)}"
        + (f" and {more} more" if more > 0 else "")
        + (f"; it read {', '.join(inputs)}" if inputs else ""),
        where=next(filter(None, lines), ""),
        why=INITIALIZER,
        todo=pair.separate,
    )
