"""What a graph program is: what runs, what changes between replays, and the right verdict."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.specimens.graphs.bench import Bench

__all__ = ["Case", "Pair", "Place", "Program", "Verdict", "both", "line", "programs_in", "refused",
           "right", "wrong"]  # fmt: skip


class Verdict(enum.Enum):
    """What a CUDA graph of a program is, whatever our checks say."""

    RIGHT = "it is captured, and replays compute what eager code computes"
    WRONG = "it is captured, and a replay computes something else"
    REFUSED = "CUDA, or torch for it, refuses the capture"


class Place(Bench):
    """A bench on which code can capture graphs of its own, too."""

    def __init__(self, backend: str, seed: int = 0, capture_pair: Any = None) -> None:
        super().__init__(capture_pair, backend, seed)

    def pool(self) -> Any:
        """Return memory that several graphs may share."""
        if self.backend == "cuda":
            return torch.cuda.graph_pool_handle()
        from pytest_cudafork.capture.choose import usable

        return usable("software").new_pool()

    def graph(self, fn: Callable[[], Any], pool: Any = None) -> Callable[[], Any]:
        """Warm ``fn`` up, capture it, and return what replays it and returns its outputs."""
        fn()
        return self.graph_as_it_is(fn, pool)

    def graph_as_it_is(self, fn: Callable[[], Any], pool: Any = None) -> Callable[[], Any]:
        """Capture ``fn`` without a warm-up."""
        if self.backend == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = fn()

            def replay_graph() -> Any:
                graph.replay()
                return result

            return replay_graph
        from pytest_cudafork.capture.choose import usable

        captured = usable("software").capture(fn, pool=pool)

        def replay_recording() -> Any:
            captured.replay()
            return captured.recording.result

        return replay_recording

    def other(self, *tensors: torch.Tensor) -> Callable[[], None]:
        """Return a change: floats are drawn anew, integers change their order, masks turn."""

        def change() -> None:
            for one in tensors:
                if one.dtype == torch.bool:
                    one.logical_not_()
                elif one.is_floating_point() or one.is_complex():
                    one.copy_(self.randn(*one.shape) if one.dim() else self.randn(1)[0])
                elif one.dim():
                    one.copy_(one.flip(0) if one.dim() == 1 else one.flip(-1))
                else:
                    one.add_(1)

        return change


@dataclass
class Case:
    """A function with static inputs, for ``assert_replay_equals_eager``.

    Attributes:
        fn: what is captured.
        inputs: its static inputs.
        vary: what changes them in place; each begins with their first contents.
        fresh: eager code that is right is this program built anew: what it keeps from its first
            call is the bug.
        options: further arguments of the check.

    """

    fn: Callable[..., Any]
    inputs: Sequence[Any] | Mapping[str, Any] = ()
    vary: Sequence[Callable[[], Any]] = ()
    fresh: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Pair:
    """A factory ``create(desc, warmup) -> (forward, state)``, for ``capture_pair``."""

    create: Callable[..., Any]
    persistent: Mapping[str, torch.Tensor]
    vary: Sequence[Callable[[], Any]] = ()
    desc: Any = 4
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A program and the verdict that it must get.

    Attributes:
        name: of the program.
        build: makes it; every call makes a new one with the same contents.
        verdict: what a CUDA graph of it is.
        why: why that is so, or what runs.
        corpus: the bug it stands for, ``owner/repository#number``; "": none.
        backends: where it can be tried.
        documented: why a check says something else than the verdict, by backend.
        needs: a package without which it cannot run.

    """

    name: str
    build: Callable[[Place], Case | Pair]
    verdict: Verdict
    why: str
    corpus: str = ""
    backends: tuple[str, ...] = ("software", "cuda")
    documented: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""


ONLY_CUDA = ("cuda",)

Build = Callable[[Place], Case | Pair]
BuildBoth = Callable[[Place, bool], Case | Pair]


def _why(fn: Callable[..., Any], why: str) -> str:
    return why or (inspect.getdoc(fn) or "").split("\n")[0]


def right(why: str = "", **more: Any) -> Callable[[Build], Program]:
    """Make a program that is captured and right; ``why`` is the docstring's first line if empty."""
    return lambda fn: Program(fn.__name__, fn, Verdict.RIGHT, _why(fn, why), **more)


def wrong(why: str = "", **more: Any) -> Callable[[Build], Program]:
    """Make a program whose replays are wrong."""
    return lambda fn: Program(fn.__name__, fn, Verdict.WRONG, _why(fn, why), **more)


def refused(why: str = "", **more: Any) -> Callable[[Build], Program]:
    """Make a program that cannot be captured."""
    return lambda fn: Program(fn.__name__, fn, Verdict.REFUSED, _why(fn, why), **more)


def both(
    verdict: Verdict, why: str = "", **more: Any
) -> Callable[[BuildBoth], tuple[Program, Program]]:
    """Make two programs of a function ``(place, fixed)``: its bug, and its repair, which is right."""

    def made(fn: BuildBoth) -> tuple[Program, Program]:
        words = _why(fn, why)
        return (
            Program(f"{fn.__name__}-buggy", lambda p: fn(p, False), verdict, words, **more),
            Program(f"{fn.__name__}-fixed", lambda p: fn(p, True), Verdict.RIGHT, words, **more),
        )

    return made


INPUTS: Mapping[str, Callable[[Place], torch.Tensor]] = {
    "x": lambda p: p.randn(4, 8),
    "y": lambda p: p.randn(4, 8),
    "w": lambda p: p.randn(8, 8),
    "v": lambda p: p.randn(8),
    "i": lambda p: p.tensor([2, 0, 3, 1]),
    "k": lambda p: p.tensor([0, 0, 1, 3]),
    "m": lambda p: p.randn(4, 8) > 0,
    "s": lambda p: p.randn(1)[0].clone(),
    "n": lambda p: p.tensor(2),
    "h": lambda p: p.randn(4, 8).half(),
    "b": lambda p: p.randn(4, 8).bfloat16(),
    "d": lambda p: p.randn(4, 8).double(),
    "u": lambda p: p.ints(0, 255, 4, 8).to(torch.uint8),
    "z": lambda p: torch.complex(p.randn(4, 8), p.randn(4, 8)),
    "cache": lambda p: p.randn(16, 8),
    "image": lambda p: p.randn(2, 3, 8, 8),
    "q": lambda p: p.randn(2, 2, 5, 8),
    "square": lambda p: p.randn(6, 6),
}
"""Inputs of one-line programs, by the name of the parameter."""


def line(fn: Callable[..., Any], **options: Any) -> Build:
    """Make a program's body of one function: its inputs follow from its parameters' names."""

    def build(place: Place) -> Case:
        inputs = {name: INPUTS[name](place) for name in inspect.signature(fn).parameters}
        change = place.other(*inputs.values())
        return Case(fn, inputs, [change, change] if inputs else [], options=dict(options))

    return build


def programs_in(module: Mapping[str, Any]) -> tuple[Program, ...]:
    """Return the programs among a module's globals, in the order in which they stand there."""
    found: list[Program] = []
    for value in module.values():
        each = value if isinstance(value, tuple) else (value,)
        found += [one for one in each if isinstance(one, Program)]
    return tuple(found)
