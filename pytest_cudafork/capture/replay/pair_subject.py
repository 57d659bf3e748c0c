"""The two sides of a pair's comparison: the captured forward, and eager runs on new states."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_cudafork.capture.interface.backend import Recording
from pytest_cudafork.capture.replay.cleanup import on_another_stream
from pytest_cudafork.capture.replay.factory import Pass
from pytest_cudafork.capture.replay.kept import Kept
from pytest_cudafork.capture.replay.passes import Passes
from pytest_cudafork.capture.replay.stimulus import Poison, Stimulus, takes_argument
from pytest_cudafork.capture.replay.subject import Subject
from pytest_cudafork.capture.state.aliasing import shared_memory
from pytest_cudafork.capture.state.reach import Reachable, moved, reachable, storages
from pytest_cudafork.capture.state.tensors import raw_of, storage_of, tensors_below
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.compat.torch_graphs.tensors import version_of


class PairSubject(Subject):
    """The captured forward, compared with eager runs on new states."""

    def __init__(self, passes: Passes, outputs: Callable[[], Any] | None, log: CheckLog) -> None:
        super().__init__()
        self._passes, self._outputs, self._log = passes, outputs, log
        self.graph = passes.graph
        passes.kept_in_step = lambda: [self.reachable()]
        self._where = passes.places
        self.watched: list[Kept] = []  # memory of the warm-up that is looked at around each vary
        self.refreshed: set[int] = set()  # addresses of what a vary has changed of it
        self.varied: dict[str, torch.Tensor] = {}  # what else a vary has changed
        if outputs is None and self.graph is not None and not passes.returns_tensors:
            self._find_written(self.graph.recording)

    def _find_written(self, recording: Recording) -> None:
        """Look for the memory to compare, as the forward returns no tensor."""
        if recording.uses is None:  # of pieces: the warm-up does the same work
            recording = self._passes.warmup
        self.find_written(recording, self._passes.after_capture.tensors())

    def varying(self, change: Callable[..., Any] | None) -> Callable[[], Any]:
        """Return the change as a round applies it; the state of each eager run gets it, too."""

        def apply() -> Any:
            wants = change is not None and takes_argument(change)
            self._passes.refresh = change if wants else None
            if change is None:
                return None
            with self._noting_changes():
                return change(self._passes.captured.state) if wants else change()

        return apply

    @contextlib.contextmanager
    def _noting_changes(self) -> Iterator[None]:
        """Note what is changed meanwhile, beside the persistent inputs."""
        known = {**self.reachable(), **self._passes.after_capture.tensors()}
        versions = {path: version_of(tensor) for path, tensor in known.items()}
        kept = [(one.region.pointer, raw_of(one.region.find())) for one in self.watched]
        before = [contents.clone() for _, contents in kept]
        yield
        self.varied.update(
            {path: known[path] for path, old in versions.items() if version_of(known[path]) != old}
        )
        for (pointer, contents), old in zip(kept, before, strict=True):
            if not torch.equal(contents, old):
                self.refreshed.add(pointer)

    def eager(self) -> Any:
        """Run the forward on a state that is built for it."""
        return self._run(self._passes.fresh)

    def eager_anew(self) -> Callable[[], Any] | None:
        """Return what runs the forward as in a new process; None where that is no other run."""
        return functools.partial(self._run, self._passes.anew) if self._may_begin_anew else None

    @property
    def _may_begin_anew(self) -> bool:
        return bool(self._passes.changed_beside) and self._passes.mode == "FULL"

    def _run(self, build: Callable[..., contextlib.AbstractContextManager[Pass]]) -> Any:
        passes = self._passes
        with build([self.inputs(), self.reachable()]) as made:
            if passes.refresh is not None:
                passes.refresh(made.state)
            # What is written in a state is looked for in this one, at the same path.
            own = tensors_below(made.state, passes.name) if self.written else {}
            Poison({path: own.get(path, t) for path, t in self.scratch.items()})
            with on_another_stream():
                result = made.run("NONE", passes.factory.desc)
            if self.written:
                own = tensors_below(made.state, passes.name)
                return {path: own.get(path, tensor) for path, tensor in self.written.items()}
        return self._outputs() if self._outputs is not None else result

    def replay(self) -> Any:
        """Replay the graph."""
        assert self.graph is not None, "there is a graph if there are rounds"
        self.graph.replay()
        return self.outputs()

    def outputs(self) -> Any:
        """The static outputs."""
        if self._outputs is not None:
            return self._outputs()
        if self.written:
            return self.written
        return self.graph.recording.result if self.graph is not None else None

    def inputs(self) -> dict[str, torch.Tensor]:
        """The persistent inputs."""
        return self._passes.persistent(self._passes.captured)

    def reach(self) -> Reachable:
        """What forward and factory carry, and memory that all states share."""
        passes = self._passes
        own = passes.after_capture.tensors()
        common = shared_memory(passes.after_capture, passes.after)
        private = [tensor for path, tensor in own.items() if path not in common]
        known = [*self.inputs().values(), *private]
        of_forward = reachable(passes.captured.forward, known, self._log.note)
        found = of_forward.tensors
        found.update(reachable(passes.factory.create, known, self._log.note).tensors)
        inputs = {storage_of(tensor) for tensor in self.inputs().values()}
        for path, tensor in self.written.items():
            if path not in own and storage_of(tensor) not in inputs:
                found.setdefault(path, tensor)
        found.update({path: own[path] for path in common if storage_of(own[path]) not in inputs})
        return Reachable(found, of_forward.generators)

    def clues(self) -> str:
        """Compare a state that is built now with the captured one as it was at capture."""
        passes = self._passes
        with passes.fresh([self.inputs(), self.reachable()]) as made:
            if passes.refresh is not None:
                passes.refresh(made.state)
            return passes.changed_values(made)

    def moved(self) -> set[str]:
        """Reachable memory that has moved is told of by the check of the states."""
        return set()

    def after_change(self, stimulus: Stimulus) -> None:
        """Note persistent inputs that lie elsewhere now."""
        for path, old, new in moved(self._where, storages(self.inputs()), None):
            self._log.add(
                "moved-input",
                f"{path} lay at {old:#x} and lies at {new:#x} after {stimulus}; the graph "
                "still reads the old memory",
                path=path,
                todo="write into the persistent tensor (copy_, fill_) instead of making a new one",
            )
