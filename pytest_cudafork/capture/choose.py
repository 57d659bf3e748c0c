"""The choice of how to capture: the software graph, or real graphs where there is a GPU.

Nothing is initialized for it, and torch is imported only where it has to be asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from pytest_cudafork.capture.interface.backend import GraphBackend
from pytest_cudafork.capture.interface.meanwhile import variable_set
from pytest_cudafork.capture.interface.seen import suspended
from pytest_cudafork.capture.interface.weak_tensors import swaps_let_pass
from pytest_cudafork.errors import GraphUsageError
from pytest_cudafork.settings import AUTO, GRAPH_BACKENDS
from pytest_cudafork.settings.real_driver import why_no_driver
from pytest_cudafork.without_torch import NO_TORCH, torch_is_missing

CHOICES = (AUTO, *GRAPH_BACKENDS)
"""What ``--cuda-fork-graphs`` and ``backend=`` take."""

_PREFERRED: ContextVar[str] = ContextVar("cudafork_graph_backend", default=AUTO)
_CAPTURING: ContextVar[str] = ContextVar("cudafork_graph_capturing", default="")


def preferring(name: str) -> contextlib.AbstractContextManager[None]:
    """Let "auto" mean this backend meanwhile, for the length of a test."""
    return variable_set(_PREFERRED, name)


@contextlib.contextmanager
def checking(what: str, backend: GraphBackend) -> Iterator[None]:
    """Let a check capture and replay; refuse one within another.

    Raises:
        GraphUsageError: a graph is being captured, and another cannot be meanwhile.

    """
    outer = _CAPTURING.get()
    if outer:
        raise GraphUsageError(
            f"{what} was called while {outer} captures: a graph cannot be captured within another; "
            "call it before or after, not from the function that is captured"
        )
    capturing = variable_set(_CAPTURING, what)
    with capturing, suspended(), backend.beside_graphs(), swaps_let_pass():
        yield


def why_no_gpu() -> str | None:
    """Why there can be no real graphs, asked of the file system only; None: there may be."""
    if torch_is_missing():
        return NO_TORCH
    missing = why_no_driver()
    return f"no GPU: {missing}" if missing else None


def why_not(name: str) -> str | None:
    """Why a backend cannot be used here; None: it can. Imports torch where that decides it."""
    if name == "cuda":
        reason = why_no_gpu()
        if reason is not None:
            return reason
    elif torch_is_missing():
        return NO_TORCH
    return _load(name).why_not()


def backends(names: Sequence[str]) -> list[GraphBackend]:
    """Return backends by name, usable here or not; "auto" stands for one that is usable."""
    return [_load(resolve(name)) for name in names]


def resolve(name: str) -> str:
    """Return what "auto" stands for: the test's marker, the option, else the GPU if there is one.

    Raises:
        GraphUsageError: there is no such backend.

    """
    if name not in CHOICES:
        raise GraphUsageError(f"backend={name!r}: use one of {', '.join(CHOICES)}")
    if name == AUTO:
        name = _PREFERRED.get()
    if name != AUTO:
        return name
    return "software" if why_not("cuda") is not None else "cuda"


def usable(name: str) -> GraphBackend:
    """Return a backend that works here.

    Raises:
        GraphUsageError: this one does not, or does not exist.

    """
    name = resolve(name)
    reason = why_not(name)
    if reason is not None:
        raise GraphUsageError(
            f"the {name} graph backend cannot be used: {reason}; use backend='auto', or mark the "
            f"test @pytest.mark.graph_capture(backends=[{name!r}]), which skips it here"
        )
    return _load(name)


def _load(name: str) -> GraphBackend:
    if name == "software":
        from pytest_cudafork.capture.software.backend import SoftwareBackend

        return SoftwareBackend()
    from pytest_cudafork.capture.cuda.backend import CudaBackend

    return CudaBackend()
