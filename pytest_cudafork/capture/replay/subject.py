"""What a comparison works on: the two sides of it, and what there was before a run."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import Capture, Recording
from pytest_cudafork.capture.replay.stimulus import Stimulus
from pytest_cudafork.capture.state.reach import Reachable
from pytest_cudafork.capture.state.tensors import MOST_BYTES, Randomness, Saved, storage_of
from pytest_cudafork.capture.state.written import written_by


class Subject(abc.ABC):
    """What is replayed, and what that is compared with."""

    name = "output"
    graph: Capture | None = None
    is_own_reference = False  # eager code is the captured function itself, and no new state

    def __init__(self) -> None:
        self.written: dict[str, torch.Tensor] = {}  # memory to compare where nothing is returned
        self.scratch: dict[str, torch.Tensor] = {}  # what of it nobody reads

    def find_written(self, recording: Recording, own: dict[str, torch.Tensor]) -> None:
        """Find the memory to compare, that of the inputs, within reach, or among ``own``."""
        known = {**self.inputs(), **self.reachable(), **own}
        self.written, read = written_by(recording, known)
        kept = {*read, *self.inputs()}
        self.scratch = {path: t for path, t in self.written.items() if path not in kept}

    @abc.abstractmethod
    def eager(self) -> Any:
        """Run the eager code on the present contents and return its outputs."""

    def padded(self) -> Any:
        """Run what is captured, eagerly and with the padding that the graph has."""
        return self.eager()

    def eager_anew(self) -> Callable[[], Any] | None:
        """Return what runs eager code as if nothing had run before; None: it is not known how."""
        return None

    @abc.abstractmethod
    def replay(self) -> Any:
        """Replay the graph and return its static outputs."""

    @abc.abstractmethod
    def outputs(self) -> Any:
        """Return the static outputs without replaying; None if they are not known before."""

    @abc.abstractmethod
    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the static inputs by path, as they are now."""

    @abc.abstractmethod
    def reach(self) -> Reachable:
        """Return other tensors that the code can reach and may change, and its generators."""

    def reachable(self) -> dict[str, torch.Tensor]:
        """Return the other tensors that the code can reach and may change, by path."""
        return self.reach().tensors

    @abc.abstractmethod
    def moved(self) -> set[str]:
        """Return the paths of reachable tensors that lie elsewhere than in the capture."""

    def read_storages(self) -> set[int]:
        """Return memory that a replay reads: poison there would be an input."""
        uses = self.graph.recording.uses if self.graph is not None else None
        if uses is not None:
            return {use.pointer for use in uses if use.reads and not use.owned}
        return {storage_of(tensor) for tensor in self.reachable().values()}

    def clues(self) -> str:
        """Say which values of Python have changed since the capture, for a failure."""
        return ""

    @abc.abstractmethod
    def after_change(self, stimulus: Stimulus) -> None:
        """Look at what a stimulus has done to memory, right after it."""


class Before(NamedTuple):
    """What there was before a run."""

    inputs: Saved
    reachable: Saved
    randomness: Randomness

    def restore(self) -> None:
        """Put everything back."""
        for part in self:
            part.restore()

    def changed(self) -> set[str]:
        """Return the paths of tensors that hold something else now."""
        return {*self.inputs.changed(), *self.reachable.changed()}

    @classmethod
    def of(cls, subject: Subject, *, cuda: bool) -> Before:
        """Save what a run of the subject may change."""
        reach = subject.reach()
        return cls(
            Saved(subject.inputs()),
            Saved(reach.tensors, most=MOST_BYTES),
            Randomness(reach.generators, cuda=cuda),
        )
