"""What a replay fails to do: it has no work, or its random numbers repeat."""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import torch

from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.judge.findings import Findings, GraphFinding, Level
from pytest_cudafork.capture.judge.memory_checks import works_unseen
from pytest_cudafork.capture.record.uses import GraphUses


def check_work(capture: SeenCapture, findings: Findings) -> None:
    """Look for a graph that holds nothing: its replays change nothing."""
    uses: GraphUses = capture.uses
    if uses.work or capture.work:
        return
    unseen = "" if capture.work == 0 else works_unseen(capture)
    findings.add(
        GraphFinding(
            "no-op-replay",
            Level.SUSPICION if unseen else Level.ERROR,
            "the graph holds no work, so replaying it changes nothing",
            (("captured at", capture.where),),
            unseen
            or "what was to be captured ran before the capture, on tensors of the host, in a "
            "thread or on a stream of its own, or not at all",
            "capture the call that does the work; what depends on the capture's result must not be "
            "cached from the warm-up",
        )
    )


def state_of(backend: str, generators: Iterable[Any] = (None,)) -> Any:
    """Return what changes whenever random numbers are drawn from generators.

    None stands for the default one of the devices of a backend.
    """
    if backend == "cuda":
        default = torch.cuda.default_generators[torch.cuda.current_device()]
    else:
        default = torch.default_generator
    return tuple(_state(default if each is None else each, backend) for each in generators)


def _state(generator: Any, backend: str) -> Any:
    if backend == "cuda" and generator.device.type == "cuda":
        return generator.initial_seed(), generator.get_offset()
    state = generator.get_state()
    return zlib.crc32(ctypes.string_at(state.data_ptr(), state.nbytes))  # NumPy may not be there


class RandomNumbers:
    """Whether replays of graphs that draw random numbers draw others each time."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._before: weakref.WeakKeyDictionary[SeenCapture, Any] = weakref.WeakKeyDictionary()

    def begins(self, capture: SeenCapture) -> None:
        """Look at the generator before a replay, and compare with the replay before."""
        if not capture.uses.draws:
            return
        state = state_of(capture.backend, capture.uses.generators)
        if self._before.get(capture) == state and capture.replays:
            self._tell(
                capture,
                Level.SUSPICION,
                "two replays of the graph began with the same state of the random generator",
                "they draw the same numbers; that is meant in a test that compares two runs",
                "if it is not, do not seed between replays",
            )
        self._before[capture] = state

    def ends(self, capture: SeenCapture) -> None:
        """See whether a replay has advanced the generator."""
        uses: GraphUses = capture.uses
        if not uses.draws:
            return
        if state_of(capture.backend, uses.generators) == self._before.get(capture):
            self._tell(
                capture,
                Level.ERROR,
                "the graph draws random numbers and its replay did not advance the generator",
                "each replay draws the same numbers: dropout, noise and sampling repeat",
                "draw from the default generator, or register the other one with "
                "CUDAGraph.register_generator_state before the capture",
            )

    def _tell(self, capture: SeenCapture, level: Level, what: str, why: str, todo: str) -> None:
        lines = (("captured at", capture.where),)
        self._findings.add(GraphFinding("rng-frozen", level, what, lines, why, todo))
