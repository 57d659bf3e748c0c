"""Owns ``capture_pair``: warm-up and capture of one forward, and the six checks of the pair.

It does not know how a graph is captured, nor how a finding is worded.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.choose import capturing, usable
from pytest_cudafork.capture.interface.backend import (
    Capture,
    CaptureFinding,
    GraphBackend,
    GraphNode,
)
from pytest_cudafork.capture.pair.checks import PairChecks
from pytest_cudafork.capture.pair.contents import Contents
from pytest_cudafork.capture.pair.factory import MODES, Factory, check_mode
from pytest_cudafork.capture.pair.pair_subject import PairSubject
from pytest_cudafork.capture.pair.passes import Passes, Persistent
from pytest_cudafork.capture.replay.cleanup import let_go_if_it_fails, putting_back
from pytest_cudafork.capture.replay.missing import inputs_read_by, missing_nodes
from pytest_cudafork.capture.replay.rounds import Rounds
from pytest_cudafork.capture.replay.stimulus import (
    Stimulus,
    check_callables,
    name_of,
    other_floats,
    takes_argument,
)
from pytest_cudafork.capture.state.aliasing import Allowed
from pytest_cudafork.capture.state.compare import Tolerance, short
from pytest_cudafork.capture.state.reach import check_devices
from pytest_cudafork.capture.state.written import nothing_compared
from pytest_cudafork.capture.story.findings import Checks, failure_text
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
    persistent: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    outputs: Callable[[], Any] | None = None,
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
        persistent: Tensors by name that warm-up and capture must share, or a function of the state
            that returns them. Their contents change between replays.
        outputs: Returns the static outputs; by default they are what ``forward_fn`` returns.
        vary: Each changes the contents of the persistent inputs in place; one that takes an
            argument gets the state, to refresh it as the program does before a replay. It may
            return a whole number: only so many first rows of the outputs are compared then.
        rtol: Relative tolerance, by default that of ``torch.testing`` for the type; 0 with
            ``atol=0``: bitwise.
        atol: Absolute tolerance, likewise.
        other_descs: Descriptors to call the factory for after the capture; the captured state's
            contents must survive that.
        shared: What both states may hold: objects, or paths as ``"state.config"`` with wildcards.
        belongs: ``belongs(state, desc)`` says whether the state's contents fit the descriptor:
            False, or an AssertionError, if not.
        poison: Overwrite the outputs before each replay, and give float inputs other values.
        rng: The forward draws random numbers: each replay must draw others.
        backend: "auto", "software" or "cuda"; the fixture sets it.

    Raises:
        CapturePairError: something is wrong; ``findings`` lists it.
        GraphUsageError: the factory or the arguments cannot be checked.

    """
    __tracebackhide__ = True
    modes = type(mode) if isinstance(mode, enum.Enum) else None
    mode = str(getattr(mode, "name", mode))
    _check_arguments(mode, vary, outputs, belongs)
    _check_lists(shared, other_descs)
    check_mode(mode, desc)
    wishes = _Wishes(
        mode, persistent, outputs, tuple(vary), Tolerance.given(rtol, atol), tuple(other_descs),
        Allowed(shared), belongs, poison, rng,
    )  # fmt: skip
    return _check(Factory(create_forward_fn, desc, modes), wishes, usable(backend))


def _check_lists(shared: Any, other_descs: Any) -> None:
    for name, value in (("shared", shared), ("other_descs", other_descs)):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise GraphUsageError(f"{name} is {short(value)}: give a list, as in {name}=[...]")


def _check_arguments(mode: str, vary: Any, outputs: Any, belongs: Any) -> None:
    if mode not in MODES:
        raise GraphUsageError(f"mode={mode!r}: use one of {', '.join(MODES)}")
    check_callables(vary, "vary")
    for name, value in (("outputs", outputs), ("belongs", belongs)):
        if value is not None and not callable(value):
            raise GraphUsageError(f"{name} is {short(value)}, which cannot be called")


class _Wishes(NamedTuple):
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


def _check(factory: Factory, wishes: _Wishes, backend: GraphBackend) -> CapturedPair:
    __tracebackhide__ = True
    checks = Checks()
    with capturing("capture_pair"):
        passes = Passes(
            factory, backend, wishes.mode, wishes.persistent, wishes.allowed, checks,
            wishes.belongs,
        )  # fmt: skip
        with let_go_if_it_fails(passes):
            _compare(passes, checks, wishes)
            return _result(passes, checks)


def _compare(passes: Passes, checks: Checks, wishes: _Wishes) -> None:
    captured = passes.run()
    _same_device(passes, passes.backend)
    passes.check_shared()
    looks = PairChecks(passes, checks)
    looks.distinct()
    looks.lazy()
    if captured:
        looks.persistent()
        Contents(passes, checks).check(wishes.other_descs)
        with putting_back(passes.persistent(passes.captured), checks):
            _replays(passes, looks, checks, wishes)


def _same_device(passes: Passes, backend: GraphBackend) -> None:
    inputs = passes.persistent(passes.captured)
    check_devices(inputs, backend.device, "the persistent inputs")
    found: dict[torch.device, str] = {}
    for path, tensor in passes.at_capture.tensors().items():
        found.setdefault(tensor.device, path)
    # Lengths on the host beside tensors on the GPU are usual.
    others = {where: path for where, path in found.items() if where.type != "cpu"}
    if len(others) > (0 if backend.device == "cpu" else 1):
        words = " and ".join(f"{path} on {where}" for where, path in found.items())
        raise GraphUsageError(
            f"the state has {words}. A graph belongs to one device: make them on "
            f"graph_backend.device ({backend.device!r} with the {backend.name} backend)"
        )


def _replays(passes: Passes, looks: PairChecks, checks: Checks, wishes: _Wishes) -> None:
    """Compare replays with eager runs on new states, then judge what needed a second sign."""
    missing = looks.missing()
    subject = PairSubject(passes, wishes.outputs, checks)
    before = len(checks.findings)
    cuda = passes.backend.name == "cuda"
    rounds = Rounds(subject, checks, wishes.tolerance, poison=wishes.poison, cuda=cuda)
    checks.did("replay-differs", "moved-input")
    rounds.run(Stimulus("the capture", lambda: None, "same"))
    rounds.asides(rng=wishes.rng)
    if wishes.poison and subject.inputs():

        def floats() -> None:
            other_floats(subject.inputs())

        rounds.run(Stimulus("other float inputs", floats, "floats"))
    for index, change in enumerate(wishes.vary):
        rounds.run(Stimulus(name_of(change, f"vary[{index}]"), subject.varying(change)))
    if wishes.vary and not any(takes_argument(change) for change in wishes.vary):
        rounds.run(Stimulus("the first inputs again", subject.varying(None), "back"))
    _judge(passes, looks, checks, missing, bool(wishes.vary), len(checks.findings) > before)
    if not checks.findings and not rounds.compared:
        raise nothing_compared(
            "forward_fn returns no tensor, and it writes no memory that could be found",
            "give outputs=lambda: the_buffer that it writes, or let it return its results",
        )


def _judge(
    passes: Passes,
    looks: PairChecks,
    checks: Checks,
    missing: Counter[tuple[str, str]],
    varied: bool,
    differs: bool,
) -> None:
    """Decide about signs that alone are none: work done once per process may be missing."""
    doubt = looks.doubt
    # A forward without a state of its own can only be judged by what it carries.
    bad = differs or (bool(doubt) and not varied and not passes.warm.own_state)
    if bad:
        for one in doubt.aliases:
            looks.aliased(one)
        for change in doubt.lazy:
            looks.skipped(change, "the capture found it set, or did not set it")
    elif doubt:
        paths = [*(one.path for one in doubt.aliases), *(change.path for change in doubt.lazy)]
        checks.note(
            f"the warm-up initialized {', '.join(dict.fromkeys(paths))}, which the forward "
            "carries; replays after every vary were right all the same"
        )
    if not missing:
        return
    wrong = {"aliased-state", "lazy-init-skipped", "replay-differs", "no-op-replay"}
    if any(found.check in wrong for found in checks.findings):
        looks.report_missing(missing)
        return
    assert passes.graph is not None, "there are nodes, so there is a graph"
    first_inputs = passes.persistent(passes.warm)
    inputs = inputs_read_by(missing, passes.warmup, passes.graph.recording, first_inputs)
    if inputs:
        looks.report_missing(missing, inputs)
        return
    kept = [passes.persistent(passes.captured), passes.after.tensors()]
    with passes.fresh(kept) as made:
        second = passes.backend.record(lambda: made.run("NONE", passes.factory.desc))
    again = missing_nodes(second, passes.graph.recording)
    if again:
        looks.report_missing(again)
    else:
        names = ", ".join(sorted(name for _, name in missing))
        checks.note(
            f"the first warm-up did work that a second one on a new state does not do, and that is "
            f"not in the graph: {names}. It is taken for work that is done once per process"
        )


def _result(passes: Passes, checks: Checks) -> CapturedPair:
    __tracebackhide__ = True
    backend, graph = passes.backend, passes.graph
    if checks.findings:
        text = failure_text(
            f"capture_pair({short(passes.factory.desc)}, mode={passes.mode!r})",
            checks.findings,
            backend=backend.name,
            not_checked=checks.skipped,
            notes=checks.notes,
            differs=backend.differences(),
        )
        raise CapturePairError(text, tuple(checks.findings)) from checks.cause
    assert graph is not None, "a capture that failed is a finding"
    report = PairReport(
        backend.name,
        tuple(checks.ran),
        dict(checks.skipped),
        tuple(checks.notes),
        passes.warmup.nodes,
        graph.recording.nodes,
    )
    return CapturedPair(passes.warm.state, passes.captured.state, graph, report)
