"""All that is in force while a capture or a recorded eager run is under way, and its undoing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pytest_cudafork.capture.interface.backend import CAPTURES_ITSELF, CaptureFinding
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.capture.software import launches, streams
from pytest_cudafork.capture.software.capture_mode import CaptureMode
from pytest_cudafork.capture.software.host_calls import HostCalls
from pytest_cudafork.capture.software.mode import EagerMode
from pytest_cudafork.capture.software.past_operators import by_operators, not_compiled
from pytest_cudafork.capture.software.places import known_places
from pytest_cudafork.capture.software.threads import OtherThreads
from pytest_cudafork.compat.torch_graphs.modes import active_modes
from pytest_cudafork.errors import CaptureFailedError
from pytest_cudafork.observe.base.garbage import no_collections

__tracebackhide__ = of_refusals


@contextlib.contextmanager
def capturing(mode: CaptureMode) -> Iterator[None]:
    """Capture in this thread."""
    _refuse_a_second()
    refusals = mode.refusals
    generator = torch.default_generator
    before = generator.get_state()
    places = known_places()
    # what torch makes on its way, as in printing, lies where the host works
    on_host = places and (lambda tensor: mode.host_works or places(tensor))
    host = HostCalls(refusals, mode.recorder.memories, on_host)
    with contextlib.ExitStack() as undo:
        undo.enter_context(no_collections())
        undo.enter_context(not_compiled())
        undo.enter_context(by_operators())
        undo.enter_context(host.refused())
        undo.enter_context(streams.refused(refusals))
        undo.enter_context(mode.under_way.watched())
        undo.enter_context(OtherThreads(refusals, allowed=mode.others_may_work).watched())
        undo.enter_context(launches.captured(mode))
        undo.enter_context(mode)
        undo.enter_context(streams.followed(mode))
        yield
    if refusals.first is None and not torch.equal(before, generator.get_state()):
        refusals.first = CaptureFinding(
            "capture-failed",
            "the state of the random generator changed within the capture",
            why="something seeded it, or drew numbers past the recorded operators; a graph draws "
            "when it is replayed, never when it is captured",
            todo="seed and draw outside the capture",
        )
        generator.set_state(before)


@contextlib.contextmanager
def noting(mode: EagerMode) -> Iterator[None]:
    """Note what this thread does."""
    with not_compiled(), by_operators(), streams.ignored(), launches.noted(mode), mode:
        yield


def _refuse_a_second() -> None:
    if any(isinstance(mode, CaptureMode) for mode in active_modes()) or OtherThreads.busy():
        raise CaptureFailedError(
            CaptureFinding(
                "capture-failed",
                "a capture was begun within a capture",
                where=line_at_work(),
                why="CUDA allows one capture of a stream at a time, and torch one of a process",
                todo=f"capture the inner function before or after the outer one; {CAPTURES_ITSELF}",
            )
        )
