"""What one captured graph uses: memory, numbers of the host, random numbers, lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from pytest_cudafork.capture.interface.weak_tensors import WeakTensor
from pytest_cudafork.capture.record.memory import Memory, Part
from pytest_cudafork.capture.record.numbers import LISTS, NUMBERS, Call
from pytest_cudafork.capture.record.optimizers import OptimizerStep

_MOST_PARTS = 64
_MOST_NAMES = 64
_MOST_READS = 512
_MOST_READING_LINES = 128


class Use:
    """Where a graph first reads, or writes, a storage, and which parts of it.

    Attributes:
        where: ``file:line`` of the first time.
        parts: what is read or written of it, each once.
        more: whether there are parts beyond those that are kept.

    """

    __slots__ = ("more", "parts", "where")

    def __init__(self, where: str) -> None:
        self.where = where
        self.parts: list[Part] = []
        self.more = False

    def add(self, part: Part) -> None:
        """Note one more part; beyond some that are kept, only that there are more."""
        if part in self.parts or self.more:
            return
        self.more = len(self.parts) == _MOST_PARTS
        if not self.more:
            self.parts.append(part)


class Unfilled(NamedTuple):
    """A read of memory that was handed out within the capture and that nothing had filled."""

    memory: Memory
    allocated: str
    where: str
    filled: int  # elements that were written by then
    read: int  # elements that are read


class Named(NamedTuple):
    """A tensor by which user code knows memory that a graph reads."""

    tensor: WeakTensor
    where: str  # the line of the read
    offset: int  # of its first element in its storage, at the capture


class HostNumber(NamedTuple):
    """A number that the host read from a tensor before the capture or within it."""

    read: Any  # record.values.Read
    value: Any
    where: str
    at: int


class HostReads:
    """Numbers that the host has read, the latest of each line, so that no other line drops them."""

    def __init__(self) -> None:
        self._by_line: dict[str, deque[HostNumber]] = {}

    def __iter__(self) -> Iterator[HostNumber]:
        return (one for line in self._by_line.values() for one in line)

    def __len__(self) -> int:
        return sum(map(len, self._by_line.values()))

    def add(self, one: HostNumber) -> None:
        """Note one; of many lines the one goes that has read nothing for the longest time."""
        line = self._by_line.pop(one.where, None)
        self._by_line[one.where] = line = deque(maxlen=_MOST_READS) if line is None else line
        line.append(one)
        if len(self._by_line) > _MOST_READING_LINES:
            del self._by_line[next(iter(self._by_line))]

    def latest(self, where: str) -> HostNumber | None:
        """Return what a line has read last; None: nothing."""
        line = self._by_line.get(where)
        return line[-1] if line else None

    def clear(self) -> None:
        """Forget all."""
        self._by_line.clear()


class GraphUses:
    """The memory of one graph, as its capture showed it.

    Attributes:
        at: the number of the event of the capture's beginning.
        ended: the number of the last event before its end.
        reads: memory from outside that it reads.
        writes: memory from outside that it writes.
        addresses: where each of these lay when it first used it; it may have been moved before.
        met: memory that no operator before the capture was seen to use, nor to make.
        made: memory that was handed out within the capture and that is kept: its results.
        allocated: addresses, first and end, of all that was handed out within the capture.
        lines: ``(operator, file:line)`` for what was captured, each once, in order.
        calls: numbers of the host among arguments, by call, in order.
        differing: calls whose numbers were others in the run before: the graph's, and that run's.
        work: how many operators and launches it holds; -1: it holds what cannot be counted.
        draws: how many of them draw random numbers.
        generators: what these draw from; None: the default generator of the device.
        numbers: numbers among their arguments.
        host: those of them that the host had read from tensors.
        named: tensors by which user code knows memory that it reads, each with the line that reads
            it, and with its offset then.
        unfilled: reads of what nothing had filled.
        places: memory from outside whose values say where the graph writes, with the line.
        began: the event at which the run before the capture began; 0: it is not known.
        steps: optimizers that take a step in it, with the numbers of their groups, and the line.
        not_seen: why not all that it does was seen; "": all was.

    """

    def __init__(self, at: int) -> None:
        self.at = self.ended = at
        self.reads: dict[Memory, Use] = {}
        self.writes: dict[Memory, Use] = {}
        self.addresses: dict[Memory, int] = {}
        self.met: list[Memory] = []
        self.made: list[Memory] = []
        self.allocated: list[tuple[int, int]] = []
        self.lines: list[tuple[str, str]] = []
        self._known_lines: set[tuple[str, str]] = set()
        self.calls: dict[Call, list[tuple[Any, ...]]] = {}
        self.differing: list[tuple[Call, tuple[Any, ...], tuple[Any, ...]]] = []
        self.work = self.draws = 0
        self.generators: list[Any] = []
        self.numbers: set[int | float | complex] = set()
        self.host: list[HostNumber] = []
        self.named: dict[Memory, list[Named]] = {}
        self.unfilled: list[Unfilled] = []
        self.places: dict[Memory, str] = {}
        self.began = 0
        self.steps: list[OptimizerStep] = []
        self.not_seen = ""

    def did(self, name: str, where: str) -> None:
        """Note one operator or launch."""
        self.work += 1
        line = name, where
        if line not in self._known_lines:
            self._known_lines.add(line)
            self.lines.append(line)

    def draws_from(self, generator: Any) -> None:
        """Note the generator that random numbers come from; None: the default one of the device."""
        self.draws += 1
        if generator not in self.generators:
            self.generators.append(generator)

    def took(self, numbers: Iterable[Any]) -> None:
        """Note the numbers among arguments."""
        for each in numbers:
            kind: type = each.__class__
            if kind in NUMBERS:
                self.numbers.add(each)
            elif kind in LISTS:
                self.took(each)

    def name(self, memory: Memory, tensor: Tensor, line: Callable[[], str]) -> None:
        """Note by which tensor user code may know memory that the graph reads."""
        if not tensor.dim():
            return
        known = self.named.setdefault(memory, [])
        known[:] = [each for each in known if each.tensor() is not None]
        if len(known) < _MOST_NAMES and all(each.tensor() is not tensor for each in known):
            known.append(Named(WeakTensor(tensor), line(), tensor.storage_offset()))

    def pin(self, memory: Memory) -> None:
        """Note where memory lies that the graph uses."""
        if memory in self.addresses:
            return
        storage = memory.refer()
        if storage is not None:
            self.addresses[memory] = storage.data_ptr()
            memory.pointer = memory.pointer or self.addresses[memory]

    def owns(self, memory: Memory) -> None:
        """Note memory that was handed out within the capture."""
        memory.owner = self
        storage = memory.refer()
        if storage is not None and memory.nbytes:
            first = memory.pointer = storage.data_ptr()
            self.allocated.append((first, first + memory.nbytes))

    def owns_of_pool(self, is_in_pool: Callable[[int], bool]) -> None:
        """Note as well what was handed out past the dispatcher, as the code of torch.compile does.

        It is first seen as an argument, and lies in the pool of the graph.
        """
        for memory in self.met:
            if memory.owner is None and memory.pointer and is_in_pool(memory.pointer):
                memory.owner = self
                self.allocated.append((memory.pointer, memory.pointer + memory.nbytes))

    def covers(self, memory: Memory) -> bool:
        """Whether memory shares an address with what was handed out within the capture."""
        first, end = memory.pointer, memory.pointer + memory.nbytes
        return bool(first) and any(a < end and first < b for a, b in self.allocated)

    def written(self) -> list[Memory]:
        """Return the memory that it writes and is still there: its results, and what it changes."""
        found = dict.fromkeys([*self.made, *self.writes])
        return [memory for memory in found if memory.held() is not None]

    def inputs(self) -> list[Tensor]:
        """Return what it reads from outside and is still there, each storage as one flat tensor."""
        return [memory.flat() for memory in self.reads if memory.held() is not None]

    def outputs(self) -> list[Tensor]:
        """Return what it writes and is still there, likewise."""
        return [memory.flat() for memory in self.written()]
