"""The arguments of one operator with each tensor as what it read, or as the place it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_cudafork.capture.operators.traits import Written
from pytest_cudafork.capture.record.memory import Memory, Part, part_of
from pytest_cudafork.capture.record.operators import KnownOperator
from pytest_cudafork.capture.record.scattered import elements_put
from pytest_cudafork.capture.record.values import Place, Read

if TYPE_CHECKING:
    from pytest_cudafork.capture.record.history import History

PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The classes of tensors that are followed; those of others say first what they are made of."""

SIMPLE = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
"""What most arguments are beside tensors: it holds none."""


class Arguments:
    """What one operator was given.

    Attributes:
        args, kwargs: as they were, with a `Read` or a `Place` for each tensor.
        reads: all the `Read` among them.
        targets: what is written: the memory, which part, and whether it is read as well.
        followed: whether all tensors have memory that can be followed.
        put: how many elements are written at given places, where nothing of the target is read;
            None: it is no such operator.

    """

    def __init__(self, history: History, known: KnownOperator | None = None) -> None:
        self.args: list[Any] = []
        self.kwargs: dict[Any, Any] = {}
        self.reads: list[Read] = []
        self.targets: list[tuple[Memory, Part, bool]] = []
        self.followed = True
        self.put: int | None = None
        self._empty: list[tuple[int, Tensor]] = []
        self._history = history
        self._known = known
        self._shape_only = known is not None and known.traits.shape_only

    def take_all(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Take all arguments of a call."""
        known = self._known
        assert known is not None, "a launch is no operator"
        written = known.written
        if written:
            self.put = elements_put(known.name, args, kwargs)
        self.args = [self.take(each, written.get(index)) for index, each in enumerate(args)]
        self.kwargs = {name: self.take(each, written.get(name)) for name, each in kwargs.items()}
        if self.targets:
            self._mark_what_is_written_too()

    def take(self, value: Any, written: Written | None) -> Any:
        """Take one argument; ``written`` says how it is written, if it is."""
        kind = value.__class__
        if kind in PLAIN:
            return self._tensor(value, written)
        if kind in SIMPLE:
            return value
        if isinstance(value, Tensor):
            if torch.nn.parameter.is_lazy(value):  # it has no shape yet
                self.followed = False
                return None
            return self._tensor(value, written)
        if isinstance(value, (list, tuple)):
            return [self.take(each, written) for each in value]
        return value

    def _tensor(self, tensor: Tensor, written: Written | None) -> Any:
        history = self._history
        memory = history.meet(tensor)
        if memory is None:
            self.followed = False
            return None
        part = part_of(tensor)
        if written is not None:
            if written.out and not tensor.numel():
                self._empty.append((len(self.targets), tensor))
            self.targets.append((memory, part, written.reads))
        if self._shape_only or (written is not None and not written.reads):
            return Place(part, tensor.device)
        if memory.filled >= 0 and self._known is not None and self._known.foreign:
            memory.filled = -1  # what operators of others write, their schemas do not always say
        if (
            not memory.writes
            and not memory.version
            and memory.filled < 0
            and tensor.device.type == "cpu"
        ):
            history.keep(memory, tensor)
        made = Read(
            memory, memory.version, memory.writes, part, written is not None, written is not None
        )
        self.reads.append(made)
        if history.uses is not None:
            draws = self._known is not None and self._known.by_generator
            only_put = written is not None and (draws or self.put is not None)
            history.graph_reads(made, tensor, looks=not only_put)
        return made

    def has_run(self) -> None:
        """See what an empty ``out=`` covers now that the operator has given it its size."""
        for index, tensor in self._empty:
            memory, _, reads = self.targets[index]
            memory.held()
            self.targets[index] = memory, part_of(tensor), reads

    def _mark_what_is_written_too(self) -> None:
        """Mark reads of memory that the call writes by another argument: x.copy_(x.flip(0))."""
        mine = {id(memory) for memory, _, _ in self.targets}
        marked = {
            id(read): read._replace(written=True)
            for read in self.reads
            if id(read.memory) in mine and not read.written
        }
        if marked:
            self.reads = [marked.get(id(read), read) for read in self.reads]
            self.args = _swapped(self.args, marked)
            self.kwargs = {name: _swapped(each, marked) for name, each in self.kwargs.items()}


def _swapped(tree: Any, marked: dict[int, Read]) -> Any:
    if tree.__class__ is list:
        return [_swapped(each, marked) for each in tree]
    return marked.get(id(tree), tree)
