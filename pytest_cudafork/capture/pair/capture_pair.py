"""``capture_pair``: runs warm-up and capture of one forward and checks that they fit together.

The fixture's function, its arguments and its report. The checks stand in the table of ``checks``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from pytest_cudafork.capture.choose import checking, usable
from pytest_cudafork.capture.interface.backend import (
    Capture,
    CaptureFinding,
    GraphNode,
)
from pytest_cudafork.capture.pair.checks import run_checks
from pytest_cudafork.capture.pair.evidence import Arguments, Evidence
from pytest_cudafork.capture.replay.cleanup import released_on_failure
from pytest_cudafork.capture.replay.factory import MODES, Factory, check_mode
from pytest_cudafork.capture.replay.outcome import raise_what_was_found
from pytest_cudafork.capture.replay.passes import Passes, Persistent
from pytest_cudafork.capture.replay.stimulus import check_callables
from pytest_cudafork.capture.state.aliasing import Allowed
from pytest_cudafork.capture.state.compare import Tolerance, short
from pytest_cudafork.capture.state.written import nothing_compared
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.errors import CapturePairError, GraphUsageError


@dataclasses.dataclass(frozen=True)
class PairReport:
    """What was checked. A failure is raised, so ``findings`` is empty in a report you get."""

    backend: str  # "software", "cuda"
    checks: tuple[str, ...]  # names of the checks that ran
    not_checked: Mapping[str, str]  # those that could not, with the reason
    notes: tuple[str, ...]  # what is worth knowing and not wrong
    warmup_nodes: tuple[GraphNode, ...] | None
    captured_nodes: tuple[GraphNode, ...] | None
    findings: tuple[CaptureFinding, ...] = ()


@dataclasses.dataclass(frozen=True)
class CapturedPair:
    """The states of warm-up and capture, the graph, and what was checked."""

    warmup: Any
    captured: Any
    graph: Capture
    report: PairReport


def capture_pair(
    create_forward_fn: Callable[..., Any],
    desc: Any,
    *,
    mode: str = "FULL",
    persistent: Persistent = None,
    outputs: Callable[[], Any] | Sequence[Any] | Mapping[str, Any] | None = None,
    vary: Sequence[Callable[..., Any]] = (),
    rtol: float | None = None,
    atol: float | None = None,
    other_descs: Sequence[Any] = (),
    shared: Iterable[Any] = (),
    belongs: Callable[[Any, Any], Any] | None = None,
    poison: bool = True,
    rng: bool = False,
    backend: str = "auto",
) -> CapturedPair:
    """Run warm-up and capture as a graph manager does, and check that they fit together.

    Args:
        create_forward_fn: ``create_forward_fn(desc, warmup) -> (forward_fn, state)``; or, called
            anew for each pass, ``create_forward_fn(desc)``, which may return ``forward_fn`` alone.
            ``forward_fn`` is called with the graph mode if it takes an argument.
        desc: The batch descriptor, handed to the factory as it is.
        mode: "FULL", or "PIECEWISE": the forward captures its own pieces and the states may be one.
        persistent: Tensors that warm-up and capture must share, by name or in a list, or a
            function of the state that returns them. Their contents change between replays.
        outputs: The static outputs in a list or by name, or a function that returns them; by
            default they are what ``forward_fn`` returns.
        vary: Each changes the contents of the persistent inputs in place; one that takes an
            argument gets the state, to refresh it as the program does before a replay. It may
            return a whole number: only so many first rows of the outputs are compared then.
        rtol: Relative tolerance, by default that of ``torch.testing`` for the type; 0 with
            ``atol=0``: bitwise.
        atol: Absolute tolerance, likewise.
        other_descs: Descriptors to call the factory for after the capture; the captured state's
            contents must survive that.
        shared: What both states may hold: objects, or paths as ``"state.config"`` with wildcards.
        belongs: Says by ``belongs(state, desc)`` whether the state's contents fit; None: unknown.
        poison: Overwrite the outputs before each replay, and give float inputs other values.
        rng: The forward draws random numbers: each replay must draw others.
        backend: "auto", "software" or "cuda"; the fixture sets it.

    Raises:
        CapturePairError: something is wrong; ``findings`` lists it.
        GraphNotJudgedError: the backend cannot run what the code does.
        GraphUsageError: the factory or the arguments cannot be checked.

    """
    __tracebackhide__ = True
    modes = type(mode) if isinstance(mode, enum.Enum) else None
    mode = str(getattr(mode, "name", mode))
    _check_arguments(mode, vary, belongs)
    _check_lists(shared, other_descs)
    check_mode(mode, desc)
    given = Arguments(
        mode, persistent, _returning(outputs), tuple(vary), Tolerance.given(rtol, atol),
        tuple(other_descs), Allowed(shared), belongs, poison, rng,
    )  # fmt: skip
    return _check(Factory(create_forward_fn, desc, modes), given, backend)


def _check_lists(shared: Any, other_descs: Any) -> None:
    for name, value in (("shared", shared), ("other_descs", other_descs)):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise GraphUsageError(f"{name} is {short(value)}: give a list, as in {name}=[...]")


def _check_arguments(mode: str, vary: Any, belongs: Any) -> None:
    if mode not in MODES:
        raise GraphUsageError(f"mode={mode!r}: use one of {', '.join(MODES)}")
    check_callables(vary, "vary")
    if belongs is not None and not callable(belongs):
        raise GraphUsageError(f"belongs is {short(belongs)}, which cannot be called")


def _returning(outputs: Any) -> Callable[[], Any] | None:
    """Return a function that returns the outputs, however they were given."""
    if outputs is None or callable(outputs):
        return cast("Callable[[], Any] | None", outputs)
    if isinstance(outputs, torch.Tensor | Mapping | Sequence) and not isinstance(
        outputs, str | bytes
    ):
        return lambda: outputs
    raise GraphUsageError(
        f"outputs is {short(outputs)}: give a list of the static outputs, or a function that "
        "returns them"
    )


def _check(factory: Factory, given: Arguments, name: str) -> CapturedPair:
    __tracebackhide__ = True
    log, backend = CheckLog(), usable(name)
    with checking("capture_pair", backend):
        passes = Passes(
            factory, backend, given.mode, given.persistent, given.allowed, log, given.belongs
        )
        with released_on_failure(passes):
            captured = passes.run()
            pair = Evidence(passes, log, given)
            run_checks(pair)
            if captured and not log.findings and not pair.compared:
                raise nothing_compared(
                    "forward_fn returns no tensor, and it writes no memory that could be found",
                    "give outputs=lambda: the_buffer that it writes, or let it return its results",
                )
            title = f"capture_pair({short(factory.desc)}, mode={given.mode!r})"
            nodes = passes.graph.recording.nodes if passes.graph is not None else None
            raise_what_was_found(log, title, backend, CapturePairError, nodes)
            return _result(passes, log)


def _result(passes: Passes, log: CheckLog) -> CapturedPair:
    graph = passes.graph
    assert graph is not None, "a capture that failed is a finding"
    report = PairReport(
        passes.backend.name,
        tuple(log.ran),
        dict(log.skipped),
        tuple(log.notes),
        passes.warmup.nodes,
        graph.recording.nodes,
    )
    return CapturedPair(passes.warm.state, passes.captured.state, graph, report)
