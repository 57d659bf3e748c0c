"""What the checks of a pair look at, and what they tell each other."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.pair.traced_lines import Slot, changed_slots, lines_that_set
from pytest_cudafork.capture.replay.factory import Pass
from pytest_cudafork.capture.replay.kept import Kept
from pytest_cudafork.capture.replay.passes import Passes, Persistent
from pytest_cudafork.capture.state.aliasing import Alias, Allowed
from pytest_cudafork.capture.state.compare import Tolerance
from pytest_cudafork.capture.state.snapshot import Change, How
from pytest_cudafork.capture.state.tensors import Saved
from pytest_cudafork.capture.story.findings import CheckLog

INITIALIZER = (
    "the initialization runs in the warm-up only: the graph replays against what the warm-up left, "
    "or against memory that nobody fills"
)
_SEPARATE = (
    "have the factory build a new object for the capture ({call}), so that the initialization runs "
    "again and is captured"
)


class Arguments(NamedTuple):
    """What ``capture_pair`` was asked for, beside the factory and the backend."""

    mode: str
    persistent: Persistent
    outputs: Callable[[], Any] | None
    vary: tuple[Callable[..., Any], ...]
    tolerance: Tolerance
    other_descs: tuple[Any, ...]
    allowed: Allowed
    belongs: Callable[[Any, Any], Any] | None
    poison: bool
    rng: bool


class Suspects:
    """Findings that need a second sign: what the forward carries may well be shared."""

    def __init__(self) -> None:
        self.aliases: list[Alias] = []
        self.lazy: list[Change] = []

    def __bool__(self) -> bool:
        return bool(self.aliases or self.lazy)


class Evidence:
    """The two passes of a pair and what the checks have seen of them so far."""

    first_inputs: Saved  # the persistent inputs as they were after the capture, if there is a graph

    def __init__(self, passes: Passes, log: CheckLog, arguments: Arguments) -> None:
        self.passes, self.log, self.arguments = passes, log, arguments
        self.suspects = Suspects()
        self.missing: Counter[tuple[str, str]] = Counter()  # work of the warm-up, not in the graph
        self.kept: list[Kept] = []  # results of the warm-up that the graph reads
        self.refreshed: set[int] = set()  # addresses of those that a vary has changed
        self.varied: dict[str, torch.Tensor] = {}  # what a vary has changed beside the inputs
        self.after_vary: Callable[[], None] | None = None  # a check with the inputs of each vary
        self.replays_differ = False
        self.differs_anew = ""  # how a replay differs from eager code that begins anew
        self.compared = 0  # tensors, in all rounds
        self._lines: dict[str, str] | None = None
        argument = "" if passes.factory.rebuilds else ", warmup=False"
        self.separate = _SEPARATE.format(call=f"create_forward_fn(desc{argument})")

    @property
    def initialized(self) -> list[Change]:
        """What the warm-up initialized in its state."""
        return [one for one in self.passes.changes if one.how is How.INITIALIZED]

    @property
    def suspects_are_wrong(self) -> bool:
        """Whether there is a second sign against the suspects, once the replays were compared."""
        if self.replays_differ:
            return True
        # A forward without a state of its own can only be judged by what it carries.
        return bool(self.suspects) and not (self.arguments.vary or self.passes.warm.own_state)

    def line_that_set(self, paths: Sequence[str]) -> str:
        """Return the line that set one of these in the warm-up; runs it once more, traced."""
        if self._lines is None:
            self._lines = self._traced(self.passes.fresh, self._slots_in)
        return next((self._lines[path] for path in paths if path in self._lines), "")

    def line_that_set_beside(self) -> str:
        """Return the line that first changed what the forward carries; runs it anew, traced."""
        slots = [
            Slot(one.path, one.node.parent, one.node.key, one.node.attribute)
            for one in self.passes.changed_beside
            if one.node.parent is not None and one.node.key is not None
        ]
        return next(iter(self._traced(self.passes.anew, lambda made: slots).values()), "")

    def _slots_in(self, made: Pass) -> list[Slot]:
        passes = self.passes
        return changed_slots(passes.changes, passes.after, passes.snapshot(made))

    def _traced(
        self,
        build: Callable[..., contextlib.AbstractContextManager[Pass]],
        slots: Callable[[Pass], list[Slot]],
    ) -> dict[str, str]:
        """Return the lines that set these slots of a pass that is built and run for it.

        Memory is as before afterwards. None are returned where that fails: a line is a courtesy.
        """
        passes = self.passes
        with contextlib.suppress(Exception):
            kept = passes.persistent(passes.captured), passes.after.tensors()
            saved = Saved(*kept)
            try:
                with build(kept) as made:
                    call = functools.partial(made.run, "NONE", passes.factory.desc)
                    return lines_that_set(call, slots(made))
            finally:
                saved.restore()
        return {}
