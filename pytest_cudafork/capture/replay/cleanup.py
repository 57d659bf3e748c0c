"""Lets go of graphs after a comparison, and keeps quiet what comparing brings about."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Protocol

from pytest_cudafork.capture.interface.backend import Capture

_OTHER_STREAM = "The AccumulateGrad node's stream does not match"


@contextlib.contextmanager
def on_another_stream() -> Iterator[None]:
    """Run eager code after its capture: results of the graph keep gradients of the graph's stream.

    Torch warns of that. It does in the capture, too, and there the warning is the user's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OTHER_STREAM)
        yield


class _HasGraph(Protocol):
    graph: Capture | None


@contextlib.contextmanager
def released_on_failure(owner: _HasGraph) -> Iterator[None]:
    """Reset the owner's graph on every way out but success: a traceback would keep it alive."""
    try:
        yield
    except BaseException:
        release(owner.graph)
        raise


def release(graph: Capture | None) -> None:
    """Reset a graph that nobody will use; a device that is lost takes nothing back."""
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if graph is not None:
            graph.reset()
