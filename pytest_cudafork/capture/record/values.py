"""Operators that ran, as a graph of values: what each read, and how that had come about."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pytest_cudafork.capture.record.memory import Memory, Part

MOST_DEPTH = 64
"""How long a chain of operators is kept; what lies further back is an input."""
MOST_OVERLAYS = 8
"""How many writes to parts of one storage are kept; after more its contents are an input."""


class Computed(enum.Enum):
    """What running an operation again would tell."""

    YES = "its result follows from what it reads"
    COPY = "its result is what it reads"
    CONSTANT = "its result is always the same"
    UNKNOWN = "it cannot be run again"


class Read(NamedTuple):
    """A tensor argument: where it lay, and what had been written there by then."""

    memory: Memory
    version: int
    writes: tuple[Write, ...]
    part: Part
    written: bool  # the operation writes its memory, too: never look at its newest contents
    target: bool  # it is an argument that the operation writes


class Place(NamedTuple):
    """A tensor argument whose contents do not matter: it is overwritten, or asked for its shape."""

    part: Part
    device: Any


class Operation:
    """One operator, or launch of a kernel, that ran.

    Attributes:
        run: what is called to run it again.
        args, kwargs: its arguments with a `Read` or a `Place` for each tensor.
        reads: all its `Read` arguments.
        where: ``file:line`` of user code; "": unknown.
        at: the number of the event.
        computed: what running it again would tell.
        depth: how long the chain of operations before it is.
        live: whether running it again may give something else.
        computes: whether it, or what it copies, follows from other values.
        heavy: whether it is a multiplication of matrices or its like.
        launch: whether it is a launch of a kernel.
        overwrites: of a launch, whether what it writes does not depend on what was there.

    """

    __slots__ = (
        "__weakref__",
        "args",
        "at",
        "computed",
        "computes",
        "depth",
        "heavy",
        "kwargs",
        "launch",
        "live",
        "overwrites",
        "reads",
        "run",
        "where",
    )  # fmt: skip

    def __init__(self, run: Callable[..., Any] | None, where: str, at: int) -> None:
        self.run = run
        self.args: list[Any] = []
        self.kwargs: dict[Any, Any] = {}
        self.reads: tuple[Read, ...] = ()
        self.where, self.at = where, at
        self.computed = Computed.UNKNOWN
        self.depth = 0
        self.live = self.computes = self.heavy = self.launch = self.overwrites = False


class Write(NamedTuple):
    """A part of a storage that an operation wrote."""

    operation: Operation
    output: int  # index among its results, or ~index among the arguments that it writes
    part: Part | None  # None: all of it


def unknown_operation(like: Operation | None = None) -> Operation:
    """Return an operation that cannot be run again, at the place and time of another one."""
    if like is None:
        return Operation(None, "", 0)
    return Operation(like.run, like.where, like.at)


ACTIVATION = (Write(unknown_operation(), 0, None),)
"""The writes of memory of which is known only that something computed it."""


def has_beginning(memory: Memory) -> bool:
    """Whether floating point numbers follow from whole ones, or are still to be filled in."""
    if memory.live or memory.filled >= 0:
        return True
    return bool(memory.writes) and memory.writes[-1].operation.computed is Computed.CONSTANT


def is_whole(dtype: Any) -> bool:
    """Whether a type is one of whole or truth numbers."""
    return not (dtype.is_floating_point or dtype.is_complex)


def is_state(memory: Memory) -> bool:
    """Whether what lies in memory before it is changed in place can only be taken as it is."""
    if not memory.writes:
        return memory.filled < 0
    return any(write.operation.computed is Computed.UNKNOWN for write in memory.writes)


def still_there(writes: tuple[Write, ...], part: Part, reads: bool) -> tuple[Write, ...]:
    """Return the writes that still show, or are read, once a part is written."""
    if reads:
        return writes
    unknown = Computed.UNKNOWN
    return tuple(w for w in writes if w.part != part or w.operation.computed is unknown)


def ancestors(operation: Operation) -> set[Operation]:
    """Return an operation and those that its value follows from today."""
    seen: set[Operation] = set()
    todo = [operation]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        todo += [write.operation for write in _writes_behind(one.reads)]
    return seen


def _writes_behind(reads: Iterable[Read]) -> Iterable[Write]:
    for read in reads:
        newest = read.memory.held() is not None and not read.written
        for write in read.memory.writes if newest else read.writes:
            if write.operation.live:
                yield write
