"""The check ``aliased-state``: the states of both passes have no mutable object in common."""

from __future__ import annotations

from pytest_cudafork.capture.pair.evidence import INITIALIZER, Evidence
from pytest_cudafork.capture.state.aliasing import Alias, shared_objects
from pytest_cudafork.capture.state.snapshot import Change

_UNCHANGED = (
    "what one pass writes into it the other finds there; nothing in it was initialized this time"
)


def check(pair: Evidence) -> None:
    """Look for mutable objects that both states hold."""
    passes = pair.passes
    if not passes.factory.rebuilds or passes.warm.own_state:
        pair.log.did("aliased-state")
    for one in shared_objects(passes.after, passes.at_capture, passes.allowed):
        if passes.warm.own_state:
            _report(pair, one)
        elif _initialized_below(pair, one):
            pair.suspects.aliases.append(one)


def conclude(pair: Evidence) -> None:
    """Report what the forward carries, if there is a second sign against it."""
    if pair.suspects_are_wrong:
        for one in pair.suspects.aliases:
            _report(pair, one)


def _report(pair: Evidence, one: Alias) -> None:
    below = _initialized_below(pair, one)
    changed = ""
    if below:
        words = [f"{change.path} ({change.before} -> {change.after})" for change in below[:4]]
        changed = f"; the warm-up initialized {', '.join(words)} in it"
    other = "" if one.other == one.path else f" ({one.other} in the captured state)"
    kind = type(one.node.value).__name__
    pair.log.add(
        "aliased-state",
        f"{one.path} is the same {kind} object in the warm-up and in the capture{other}{changed}",
        path=one.path,
        where=pair.line_that_set([change.path for change in below]),
        why=INITIALIZER if below else _UNCHANGED,
        todo=f"{pair.separate}; if both may hold it, say shared=[{one.path!r}]",
    )


def _initialized_below(pair: Evidence, one: Alias) -> list[Change]:
    starts = (f"{one.path}.", f"{one.path}[", f"{one.path}{{")
    return [
        change
        for change in pair.initialized
        if change.path.startswith(starts) or change.path == one.path
    ]
