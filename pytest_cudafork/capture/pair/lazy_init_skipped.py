"""The check ``lazy-init-skipped``: the capture initializes what the warm-up has initialized."""

from __future__ import annotations

from pytest_cudafork.capture.pair.evidence import INITIALIZER, Evidence
from pytest_cudafork.capture.state.snapshot import Change, Entry, How, is_unset, words_of
from pytest_cudafork.capture.state.state_tree import Kind
from pytest_cudafork.capture.state.tensors import storage_of


def check(pair: Evidence) -> None:
    """Look for initializations of the warm-up that the capture found done, or did not do."""
    passes = pair.passes
    pair.log.did("lazy-init-skipped")
    for change in passes.changes:
        if passes.allowed.covers(change.path, change.node.value):
            continue
        if change.how is How.INITIALIZED:
            words = _skipped(pair, change)
        elif change.how is How.WRITTEN:
            words = _not_written(pair, change)
        else:
            continue
        if words and passes.warm.own_state and not _in_module(pair, change):
            _report(pair, change, words)
        elif words:
            pair.suspects.lazy.append(change)
    pair.suspects.lazy += passes.carried


def conclude(pair: Evidence) -> None:
    """Report what the forward carries if there is a second sign against it, else note it."""
    suspects = pair.suspects
    if pair.suspects_are_wrong:
        for change in suspects.lazy:
            _report(pair, change, "the capture found it set, or did not set it")
    elif suspects and not pair.differs_anew:
        paths = [*(one.path for one in suspects.aliases), *(one.path for one in suspects.lazy)]
        pair.log.note(
            f"the warm-up initialized {', '.join(dict.fromkeys(paths))}, which the forward "
            "carries; replays after every vary were right all the same"
        )


def _report(pair: Evidence, change: Change, words: str) -> None:
    pair.log.add(
        "lazy-init-skipped",
        f"the warm-up set it ({change.before} -> {change.after}), and {words}",
        path=change.path,
        where=pair.line_that_set([change.path]),
        why=INITIALIZER,
        todo=pair.separate,
    )


def _in_module(pair: Evidence, change: Change) -> bool:
    parent = pair.passes.after.by_id.get(id(change.node.parent))
    return parent is not None and parent.kind is Kind.MODULE


def _skipped(pair: Evidence, change: Change) -> str:
    """Say what is wrong with the captured state at a path; "" if nothing is."""
    at_start = pair.passes.at_capture.entries.get(change.path)
    at_end = pair.passes.after_capture.entries.get(change.path)
    old = pair.passes.before.entries.get(change.path)
    if at_start is not None and not _is_as_before(at_start, old):
        return f"it is already set when the capture starts ({words_of(at_start)})"
    if at_end is None or _is_as_before(at_end, old):
        return "the capture does not set it"
    return ""


def _is_as_before(entry: Entry, old: Entry | None) -> bool:
    return is_unset(entry) if old is None else (is_unset(old) and is_unset(entry))


def _not_written(pair: Evidence, change: Change) -> str:
    """Say that no captured work writes a tensor that the warm-up has written; "" if some does."""
    graph = pair.passes.graph
    uses = graph.recording.uses if graph is not None else None
    if uses is None or not _is_written_by_forward(pair, change):
        return ""
    entry = pair.passes.after_capture.entries.get(change.path)
    if entry is None or entry.node.kind is not Kind.TENSOR:
        return ""
    where = storage_of(entry.node.value)
    if not where or any(use.pointer == where and use.writes for use in uses):
        return ""
    return "no work in the graph writes it"


def _is_written_by_forward(pair: Evidence, change: Change) -> bool:
    uses = pair.passes.warmup.uses
    where = storage_of(change.node.value)
    return uses is None or any(use.pointer == where and use.writes for use in uses)
