"""Owns the checks of a pair that look at states and nodes: distinct, initialized, shared, complete.

It does not know how replays compare, nor what the states' contents should be.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import torch

from pytest_cudafork.capture.pair.passes import Passes
from pytest_cudafork.capture.pair.traced_lines import changed_slots, lines_that_set
from pytest_cudafork.capture.replay.missing import key, missing_nodes
from pytest_cudafork.capture.state.aliasing import Alias, shared_objects
from pytest_cudafork.capture.state.snapshot import Change, Entry, How, is_unset, words_of
from pytest_cudafork.capture.state.state_tree import Kind
from pytest_cudafork.capture.state.tensors import Saved, storage_of
from pytest_cudafork.capture.story.findings import Checks

_INITIALIZER = (
    "the initialization runs in the warm-up only: the graph replays against what the warm-up left, "
    "or against memory that nobody fills"
)
_UNCHANGED = (
    "what one pass writes into it the other finds there; nothing in it was initialized this time"
)
_SEPARATE = (
    "have the factory build a new object for the capture ({call}), so that the initialization runs "
    "again and is captured"
)


class Doubt:
    """Findings that need a second sign: what the forward carries may well be shared."""

    def __init__(self) -> None:
        self.aliases: list[Alias] = []
        self.lazy: list[Change] = []

    def __bool__(self) -> bool:
        return bool(self.aliases or self.lazy)


class PairChecks:
    """Looks at the passes and notes what is wrong."""

    def __init__(self, passes: Passes, checks: Checks) -> None:
        self._passes, self._checks = passes, checks
        self._changes = passes.initialized()
        self._lines: dict[str, str] | None = None
        self.doubt = Doubt()
        argument = "" if passes.factory.rebuilds else ", warmup=False"
        self._separate = _SEPARATE.format(call=f"create_forward_fn(desc{argument})")

    @property
    def _lazy(self) -> list[Change]:
        return [one for one in self._changes if one.how is How.INITIALIZED]

    # -- 1: distinct -----------------------------------------------------------------------------

    def distinct(self) -> None:
        """Check that the two states have no mutable object in common."""
        passes = self._passes
        if passes.mode == "PIECEWISE":
            self._checks.cannot("aliased-state", "mode PIECEWISE: the states may be one object")
            return
        if not passes.factory.rebuilds or passes.warm.own_state:
            self._checks.did("aliased-state")
        found = shared_objects(passes.after, passes.at_capture, passes.allowed)
        for one in found:
            if passes.warm.own_state:
                self.aliased(one)
            elif self._below(one):
                self.doubt.aliases.append(one)

    def aliased(self, one: Alias) -> None:
        """Note one shared object."""
        below = self._below(one)
        changed = ""
        if below:
            words = [f"{change.path} ({change.before} -> {change.after})" for change in below[:4]]
            changed = f"; the warm-up initialized {', '.join(words)} in it"
        other = "" if one.other == one.path else f" ({one.other} in the captured state)"
        kind = type(one.node.value).__name__
        self._checks.add(
            "aliased-state",
            f"{one.path} is the same {kind} object in the warm-up and in the capture{other}"
            f"{changed}",
            path=one.path,
            where=self._line([change.path for change in below]),
            why=_INITIALIZER if below else _UNCHANGED,
            todo=f"{self._separate}; if both may hold it, say shared=[{one.path!r}]",
        )

    def _below(self, one: Alias) -> list[Change]:
        starts = (f"{one.path}.", f"{one.path}[", f"{one.path}{{")
        return [
            change
            for change in self._lazy
            if change.path.startswith(starts) or change.path == one.path
        ]

    # -- 2: initialized --------------------------------------------------------------------------

    def lazy(self) -> None:
        """Check that the capture initializes what the warm-up has initialized."""
        passes = self._passes
        if passes.mode == "PIECEWISE":
            self._checks.cannot(
                "lazy-init-skipped", "mode PIECEWISE: initialization is not captured"
            )
            return
        self._checks.did("lazy-init-skipped")
        for change in self._changes:
            if passes.allowed.covers(change.path, change.node.value):
                continue
            if change.how is How.INITIALIZED:
                words = self._skipped(change)
            elif change.how is How.WRITTEN:
                words = self._not_written(change)
            else:
                continue
            if words and passes.warm.own_state and not self._in_module(change):
                self.skipped(change, words)
            elif words:
                self.doubt.lazy.append(change)
        self.doubt.lazy += passes.carried

    def skipped(self, change: Change, words: str) -> None:
        """Note one initialization that the capture did not make."""
        self._checks.add(
            "lazy-init-skipped",
            f"the warm-up set it ({change.before} -> {change.after}), and {words}",
            path=change.path,
            where=self._line([change.path]),
            why=_INITIALIZER,
            todo=self._separate,
        )

    def _in_module(self, change: Change) -> bool:
        parent = self._passes.after.by_id.get(id(change.node.parent))
        return parent is not None and parent.kind is Kind.MODULE

    def _skipped(self, change: Change) -> str:
        """Say what is wrong with the captured state at a path; "" if nothing is."""
        at_start = self._passes.at_capture.entries.get(change.path)
        at_end = self._passes.after_capture.entries.get(change.path)
        old = self._passes.before.entries.get(change.path)
        if at_start is not None and not self._is_as_before(at_start, old):
            return f"it is already set when the capture starts ({words_of(at_start)})"
        if at_end is None or self._is_as_before(at_end, old):
            return "the capture does not set it"
        return ""

    def _is_as_before(self, entry: Entry, old: Entry | None) -> bool:
        return is_unset(entry) if old is None else (is_unset(old) and is_unset(entry))

    def _not_written(self, change: Change) -> str:
        graph = self._passes.graph
        uses = graph.recording.uses if graph is not None else None
        if uses is None or not self._is_written_by_forward(change):
            return ""
        entry = self._passes.after_capture.entries.get(change.path)
        if entry is None or entry.node.kind is not Kind.TENSOR:
            return ""
        where = storage_of(entry.node.value)
        if not where or any(use.pointer == where and use.writes for use in uses):
            return ""
        return "no work in the graph writes it"

    def _is_written_by_forward(self, change: Change) -> bool:
        uses = self._passes.warmup.uses
        where = storage_of(change.node.value)
        return uses is None or any(use.pointer == where and use.writes for use in uses)

    # -- 3: shared -------------------------------------------------------------------------------

    def persistent(self) -> None:
        """Check that persistent inputs lie in the same memory in both passes."""
        passes = self._passes
        first, second = passes.persistent(passes.warm), passes.persistent(passes.captured)
        if not first and not second:
            self._checks.cannot("not-shared", "no persistent inputs were given (persistent=)")
            return
        self._checks.did("not-shared")
        for path in sorted({*first, *second}):
            one, two = first.get(path), second.get(path)
            a, b = (0 if t is None else storage_of(t) for t in (one, two))
            if a != b:
                self._not_shared(
                    path, f"lies at {a:#x} in the warm-up and at {b:#x} in the capture"
                )
        self._by_name(second)
        consequence = {"aliased-state", "lazy-init-skipped"}
        if not self.doubt and not any(one.check in consequence for one in self._checks.findings):
            self._by_use(first)

    def _by_name(self, tensors: dict[str, torch.Tensor]) -> None:
        """Compare with the fields of the states that bear the name of a persistent input."""
        for path, tensor in tensors.items():
            name = path.removeprefix("persistent[").split("]")[0].strip("'\"")
            for snapshot, which in (
                (self._passes.after, "warm-up"),
                (self._passes.at_capture, "capture"),
            ):
                fields = [
                    (field, one)
                    for field, one in snapshot.tensors().items()
                    if field.endswith((f".{name}", f"[{name!r}]"))
                ]
                here = storage_of(tensor)
                if fields and all(storage_of(one) != here for _, one in fields):
                    field, one = fields[0]
                    self._not_shared(
                        field,
                        f"of the {which} lies at {storage_of(one):#x}, and {path} at {here:#x}",
                    )

    def _by_use(self, tensors: dict[str, torch.Tensor]) -> None:
        graph = self._passes.graph
        captured = graph.recording.uses if graph is not None else None
        warm = self._passes.warmup.uses
        if captured is None or warm is None:
            return
        for path, tensor in tensors.items():
            where = storage_of(tensor)
            before = any(use.pointer == where and use.reads for use in warm)
            used = any(use.pointer == where for use in captured)
            if before and not used:
                self._not_shared(path, "was read in the warm-up and is not used in the graph")
            elif not used:
                self._checks.cannot(f"not-shared ({path})", "neither pass reads it")

    def _not_shared(self, path: str, words: str) -> None:
        self._checks.add(
            "not-shared",
            f"{path} {words}",
            path=path,
            why="what the program writes into the persistent input before a replay does not reach "
            "the graph, which keeps computing with the contents of the capture",
            todo="build both states as views of the persistent buffer (buffer[:n]), never as "
            "copies; write into it with copy_",
        )

    # -- 5: complete -----------------------------------------------------------------------------

    def missing(self) -> Counter[tuple[str, str]]:
        """Return the work of the warm-up that is not in the graph."""
        graph = self._passes.graph
        if self._passes.mode == "PIECEWISE":
            self._checks.cannot("missing-kernels", "mode PIECEWISE: the pieces are captured apart")
            return Counter()
        assert graph is not None, "nodes are compared when there is a graph"
        for recording, which in (
            (self._passes.warmup, "the warm-up"),
            (graph.recording, "the graph"),
        ):
            if recording.nodes is None:
                self._checks.cannot(
                    "missing-kernels", f"the work of {which} is not known: {recording.why_not}"
                )
                return Counter()
        self._checks.did("missing-kernels")
        return missing_nodes(self._passes.warmup, graph.recording)

    def report_missing(self, missing: Counter[tuple[str, str]], inputs: Sequence[str] = ()) -> None:
        """Note work that the graph lacks, and which inputs it read."""
        count = sum(missing.values())
        names = [f"{name} x{n}" if n > 1 else name for (_, name), n in missing.most_common(8)]
        more = len(missing) - len(names)
        lines = [node.where for node in self._passes.warmup.nodes or () if key(node) in missing]
        verb = "kernel of the warm-up is" if count == 1 else "kernels of the warm-up are"
        self._checks.add(
            "missing-kernels",
            f"{count} {verb} missing from the graph: {', '.join(names)}"
            + (f" and {more} more" if more > 0 else "")
            + (f"; it read {', '.join(inputs)}" if inputs else ""),
            where=next(filter(None, lines), ""),
            why=_INITIALIZER,
            todo=self._separate,
        )

    # -- the line --------------------------------------------------------------------------------

    def _line(self, paths: Sequence[str]) -> str:
        """Return the line that set one of these in the warm-up; runs it once more, traced."""
        if self._lines is None:
            self._lines = {}
            with contextlib.suppress(Exception):  # the line is a courtesy
                self._lines = self._trace()
        return next((self._lines[path] for path in paths if path in self._lines), "")

    def _trace(self) -> dict[str, str]:
        passes = self._passes
        kept = passes.persistent(passes.captured), passes.after.tensors()
        with passes.fresh(kept) as made:
            target = passes.snapshot(made)
            slots = changed_slots(self._changes, passes.after, target)
            saved = [Saved(tensors) for tensors in kept]
            try:
                return lines_that_set(lambda: made.run("NONE", passes.factory.desc), slots)
            finally:
                for one in saved:
                    one.restore()
