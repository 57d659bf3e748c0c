"""``assert_replay_equals_eager``: whether a replay computes what eager code computes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_cudafork.capture.choose import checking, usable
from pytest_cudafork.capture.interface.backend import (
    Capture,
    CaptureFinding,
    GraphBackend,
    GraphNode,
)
from pytest_cudafork.capture.replay.cleanup import release, released_on_failure
from pytest_cudafork.capture.replay.function_subject import FunctionSubject
from pytest_cudafork.capture.replay.outcome import raise_what_was_found
from pytest_cudafork.capture.replay.rounds import Rounds
from pytest_cudafork.capture.replay.stimulus import (
    Stimulus,
    check_callables,
    name_of,
    other_float_inputs,
    other_floats,
)
from pytest_cudafork.capture.state.compare import Tolerance, short
from pytest_cudafork.capture.state.reach import check_devices
from pytest_cudafork.capture.state.tensors import restored
from pytest_cudafork.capture.state.written import nothing_compared
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.errors import CaptureFailedError, GraphUsageError, ReplayDiffersError


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """What was checked. A failure is raised, so ``findings`` is empty in a report you get."""

    backend: str  # "software", "cuda"
    checks: tuple[str, ...]  # names of the checks that ran
    not_checked: Mapping[str, str]  # those that could not, with the reason
    notes: tuple[str, ...]  # what is worth knowing and not wrong
    replays: int
    nodes: tuple[GraphNode, ...] | None
    graph: Capture | None
    findings: tuple[CaptureFinding, ...] = ()


def assert_replay_equals_eager(
    fn: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any] = (),
    *,
    vary: Sequence[Callable[[], Any]] = (),
    poison: bool = True,
    interleave: Sequence[Callable[[], Any]] = (),
    rtol: float | None = None,
    atol: float | None = None,
    backend: str = "auto",
    rng: bool = False,
    pool: Any = None,
    eager: Callable[..., Any] | None = None,
    replay: Callable[[], Any] | None = None,
    refills: bool = False,
) -> ReplayReport:
    """Capture ``fn``, replay it under stimuli that bring out bugs, and compare it with eager code.

    Args:
        fn: ``fn(*inputs)`` for a sequence, ``fn(**inputs)`` for a mapping; returns a tensor or any
            nesting of tuples, lists, dicts and dataclasses of them.
        inputs: The static inputs. Their memory stays, their contents change.
        vary: Each changes the contents of the static inputs in place, beginning with the first
            contents: lengths, a smaller batch, other tokens. It may return a whole number: only so
            many first rows of the outputs are live then, and only they are compared.
        poison: Overwrite the outputs before each replay, and give float inputs other values.
        interleave: Other work: run, and captured in the same pool, between replays of ``fn``.
        rtol: Relative tolerance, by default that of ``torch.testing`` for the type; 0 with
            ``atol=0``: bitwise.
        atol: Absolute tolerance, likewise.
        backend: "auto", "software" or "cuda".
        rng: ``fn`` draws random numbers: each replay must draw others.
        pool: Memory to capture in, from ``backend.new_pool()``.
        eager: What to compare with, called as ``fn`` is, or without arguments; ``fn`` itself. For
            instance the same computation on a batch without padding.
        replay: Your own graph: called without arguments it replays and returns its static outputs.
        refills: Each ``vary`` fills all static inputs: results must not depend on what it leaves.

    Raises:
        ReplayDiffersError: something is wrong; ``findings`` lists it.
        GraphNotJudgedError: the backend cannot run what the code does.
        GraphUsageError: the arguments cannot be checked.

    """
    __tracebackhide__ = True
    _check_arguments(fn, inputs, eager, replay, vary, interleave)
    chosen = usable(backend)
    _check_pool(pool, chosen, refills and not vary)
    log, near = CheckLog(), Tolerance.given(rtol, atol)
    options = _Options(near, poison, rng, refills, tuple(vary), tuple(interleave))
    with checking("assert_replay_equals_eager", chosen), contextlib.ExitStack() as stack:
        subject = FunctionSubject(fn, inputs, eager, replay, log)
        check_devices(subject.inputs(), chosen, "the static inputs")
        pool = chosen.new_pool() if pool is None and interleave else pool
        stack.enter_context(restored(subject.inputs(), lambda: bool(log.findings)))
        with released_on_failure(subject):
            ready = subject.observe(chosen) if replay is not None else subject.capture(chosen, pool)
            rounds = _compare(subject, chosen, log, options, pool, stack) if ready else None
            return _result(chosen, log, subject, rounds)


@dataclasses.dataclass(frozen=True)
class _Options:
    tolerance: Tolerance
    poison: bool
    rng: bool
    refills: bool
    vary: tuple[Callable[[], Any], ...]
    interleave: tuple[Callable[[], Any], ...]


def _check_arguments(
    fn: Any, inputs: Any, eager: Any, replay: Any, vary: Any, interleave: Any
) -> None:
    check_callables(vary, "vary")
    check_callables(interleave, "interleave")
    for name, value in (("fn", fn), ("eager", eager), ("replay", replay)):
        if not callable(value) and (value is not None or name == "fn"):
            raise GraphUsageError(f"{name} is {value!r}, which cannot be called")
    if isinstance(inputs, torch.Tensor):
        raise GraphUsageError("inputs is a tensor: give a list of the static inputs, as in [x]")
    if not isinstance(inputs, Sequence | Mapping) or isinstance(inputs, str | bytes):
        raise GraphUsageError(
            f"inputs is {inputs!r}: give a list of the arguments of fn, or a dict of its keywords"
        )
    for key in inputs if isinstance(inputs, Mapping) else ():
        if not isinstance(key, str):
            raise GraphUsageError(f"inputs has the key {key!r}: those of a dict are keywords of fn")


def _check_pool(pool: Any, backend: GraphBackend, unfilled: bool) -> None:
    if unfilled:
        raise GraphUsageError("refills=True says that each vary fills the inputs: give vary=[...]")
    if pool is not None and type(pool) is not type(backend.new_pool()):
        raise GraphUsageError(
            f"pool is {short(pool)}: give what new_pool() of the graph_backend fixture returns"
        )


def _compare(
    subject: FunctionSubject,
    backend: GraphBackend,
    log: CheckLog,
    options: _Options,
    pool: Any,
    stack: contextlib.ExitStack,
) -> Rounds:
    rounds = Rounds(
        subject,
        log,
        options.tolerance,
        poison=options.poison,
        refills=options.refills,
        compare_effects=subject.is_own_reference,
        in_a_row=not subject.is_own_reference,
        cuda=backend.name == "cuda",
    )
    log.did("replay-differs")
    if options.poison:
        log.did("no-op-replay")
    rounds.run(Stimulus("the capture", lambda: None, "same"))
    rounds.asides(rng=options.rng)

    def floats() -> None:
        if options.poison:
            other_floats(subject.inputs())

    if options.poison:
        rounds.run(other_float_inputs(subject.inputs))
    for stimulus in _others(options.interleave, backend, log, pool, stack, floats):
        rounds.run(stimulus)
    for index, change in enumerate(options.vary):
        rounds.run(Stimulus(f"vary[{index}]", change, given=change))
    if options.vary and subject.is_own_reference:  # another one may have state on the host
        rounds.run(Stimulus("the first inputs again", lambda: None, "back"))
    subject.report_moved()
    if rounds.differs_anew and not log.findings:
        subject.warn_of_first_call(rounds.differs_anew)
    if not log.findings and not rounds.compared:
        raise nothing_compared(*_where_nothing(subject))
    if options.poison and not log.findings and subject.graph is None and not rounds.could_tell:
        raise nothing_compared(
            "replay returns its outputs in new memory, and no stimulus changed what eager code "
            "gives",
            "give vary=[...] that changes the inputs, or let replay return the static outputs",
        )
    return rounds


def _where_nothing(subject: FunctionSubject) -> tuple[str, str]:
    if not subject.is_own_reference:
        return "eager returned no tensor", "let it return what fn returns"
    return (
        "fn returned no tensor, and it writes no memory that could be found",
        "does it lack a return? Let it return its results",
    )


def _others(
    interleave: Sequence[Callable[[], Any]],
    backend: GraphBackend,
    log: CheckLog,
    pool: Any,
    stack: contextlib.ExitStack,
    floats: Callable[[], None],
) -> list[Stimulus]:
    """Make a stimulus of each other piece of work, run eagerly and as a later graph."""
    found = []
    for index, other in enumerate(interleave):
        name = name_of(other, f"interleave[{index}]")

        def run(other: Callable[[], Any] = other) -> None:
            other()
            floats()

        def captured(other: Callable[[], Any] = other, name: str = name) -> None:
            try:
                graph = backend.capture(other, pool=pool)
            except CaptureFailedError as error:
                log.note(f"{name} was only run eagerly, because it cannot be captured: {error}")
                return
            stack.callback(release, graph)
            graph.replay()
            floats()

        found.append(Stimulus(f"{name} ran", run, "other"))
        found.append(Stimulus(f"{name} was captured and replayed", captured, "other"))
    return found


def _result(
    backend: GraphBackend, log: CheckLog, subject: FunctionSubject, rounds: Rounds | None
) -> ReplayReport:
    __tracebackhide__ = True
    graph = subject.graph
    title = "the replay is not what eager code computes"
    nodes = graph.recording.nodes if graph is not None else None
    raise_what_was_found(log, title, backend, ReplayDiffersError, nodes)
    return ReplayReport(
        backend.name,
        tuple(log.ran),
        dict(log.skipped),
        tuple(log.notes),
        rounds.replays if rounds is not None else 0,
        nodes,
        graph,
    )
