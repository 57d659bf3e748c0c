"""The history of memory: which operators wrote what lies there, and what these had read.

Nothing is judged here. Only chains that begin in whole numbers are kept, unless all are asked for:
plans, positions and lengths are such, and activations would be most of what there is.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import line_at_work, line_in_thread
from pytest_cudafork.capture.interface.meanwhile import attribute_set
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.record.arguments import PLAIN, Arguments
from pytest_cudafork.capture.record.memory import Memories, Memory, Part, part_of
from pytest_cudafork.capture.record.numbers import Call, LineNumbers, has_numbers, numbers_in
from pytest_cudafork.capture.record.operators import KnownOperator, Operators, draws_nothing
from pytest_cudafork.capture.record.scattered import UNKNOWN, places_among
from pytest_cudafork.capture.record.uncomputed import Uncomputed
from pytest_cudafork.capture.record.uses import GraphUses, HostNumber, HostReads, Unfilled, Use
from pytest_cudafork.capture.record.values import (
    ACTIVATION,
    MOST_DEPTH,
    MOST_OVERLAYS,
    Computed,
    Operation,
    Read,
    Write,
    has_beginning,
    is_state,
    is_whole,
    still_there,
    unknown_operation,
)

__tracebackhide__ = of_refusals

KEPT_BYTES = 4096
"""Up to how many bytes values that come from the host are kept, should they be gone later."""


class History:
    """What is known of all memory that operators of one thread have used.

    Attributes:
        memories: all storages.
        uses: those of the graph whose capture is under way; None: there is no such capture.
        paused: whether operators are none of the user's.
        at: the number of the last event.
        missed: whether recording began in the midst of a test, after work that nobody saw.
        host: numbers that the host has read from tensors, the latest ones.
        spoiled: results of graphs that were overwritten, each with what is told when it is read.
        told: those of them of which it was told in this test.
        uncomputed: results of graphs that no replay has computed yet.
        numbers: those of the host among arguments, by line.
        later: for lines that are watched, when they ran since, and what they read then.
        latest: when operators ran last outside of captures: ``(operator, file:line)`` to the event.

    """

    def __init__(self, *, everything: bool = False) -> None:
        self.memories = Memories()
        self.operators = Operators()
        self.uses: GraphUses | None = None
        self.paused = False
        self.at = 0
        self.missed = False
        self.host: HostReads = HostReads()
        self.spoiled: dict[Memory, Callable[[str], None]] = {}
        self.told: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.uncomputed = Uncomputed(self.memories)
        self.numbers = LineNumbers()
        self.later: dict[str, deque[tuple[int, set[Memory]]]] = {}
        self.latest: dict[tuple[str, str], int] = {}
        self._everything = everything
        self._thread = threading.get_ident()

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Take no notice of operators, for the length of a ``with``."""
        return attribute_set(self, "paused", True)

    def outside_of_capture(self) -> contextlib.AbstractContextManager[None]:
        """For the length of a ``with`` operators are no part of the graph that is captured."""
        return attribute_set(self, "uses", None)

    def forget(self) -> None:
        """Know only what memory there is: all of it may have been changed, and nobody saw how."""
        self.at += 1
        for memory in list(self.memories.known.values()):
            self._forget(memory, "")
        self.host.clear()

    def line(self) -> str:
        """Return the line of user code that is at work, also where torch works in a thread."""
        return line_at_work() or line_in_thread(self._thread)

    # -- operators ---------------------------------------------------------------------------------

    def work(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator, and note what it did."""
        result = self._work(known, args, kwargs)
        if known.kind is Kind.WORK:
            given = (*args, *kwargs.values()) if kwargs else args
            if has_numbers(given):
                self.note_numbers(known, given, result)
        return result

    def note_numbers(self, known: KnownOperator, args: Any, result: Any) -> None:
        """Note the numbers among the arguments of a call."""
        numbers, shapes = numbers_in(args, result)
        call = Call(self.line(), known.name, shapes)
        if self.uses is None:
            self.numbers.called(call, numbers, self.at)
        else:
            self.uses.calls.setdefault(call, []).append(numbers)

    def _work(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.uses is None and self._is_of_no_interest(known, args, kwargs):
            result = known.op(*args, **kwargs)
            if known.written:
                self._change(known, args, kwargs)
            else:
                self._activate(known, result)
            return result
        return self._follow(known, args, kwargs)

    def _follow(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        draws = known.draws
        if draws and draws_nothing(known, args, kwargs):
            draws = False
        taken = Arguments(self, known)
        taken.take_all(args, kwargs)
        result = known.op(*args, **kwargs)
        taken.has_run()
        if known.kind in (Kind.EMPTY, Kind.LIFT):
            self.appeared(known.kind, result)
            return result
        operation = self.operation(known.op, taken, known.heavy)
        operation.computed = self._computed(known, taken, draws=draws)
        self._rank(operation, known)
        uses = self.uses
        if uses is None:
            self.latest[known.traits.name, operation.where] = operation.at
        else:
            uses.took((*args, *kwargs.values()))
            uses.did(known.traits.name, operation.where)
            if draws:
                uses.draws_from(kwargs.get("generator"))
            for each in places_among(known.name, args):
                self._places(each, operation.where)
        for index, (memory, part, reads) in enumerate(taken.targets):
            self.written(memory, Write(operation, ~index, part), reads=reads, put=taken.put)
        self._results(operation, result)
        return result

    def copied(
        self, known: KnownOperator, args: Any, kwargs: dict[str, Any], result: Tensor
    ) -> None:
        """Note what an operator has made that may return a view: nothing, if it did."""
        if self.memories.get(result) is not None:
            return
        taken = Arguments(self, known)
        taken.take_all(args, kwargs)
        operation = self.operation(known.op, taken, known.heavy)
        self.settle(operation)
        if self.uses is not None:
            self.uses.did(known.traits.name, operation.where)
        self._results(operation, result)

    def _computed(self, known: KnownOperator, taken: Arguments, *, draws: bool) -> Computed:
        again = known.again or (known.draws and not draws)
        if draws or not again or not taken.followed:
            return Computed.UNKNOWN
        if known.copies:
            return Computed.COPY
        return Computed.YES if taken.reads else Computed.CONSTANT

    def operation(self, run: Any, taken: Arguments, heavy: bool) -> Operation:
        """Return a new operation with these arguments; what it computed is not said yet."""
        self.at += 1
        made = Operation(run, self.line(), self.at)
        made.args, made.kwargs, made.reads = taken.args, taken.kwargs, tuple(taken.reads)
        made.heavy = heavy
        seen = self.later.get(made.where)
        if seen is not None:
            seen.append((self.at, {read.memory for read in taken.reads}))
        return made

    def _rank(self, operation: Operation, known: KnownOperator) -> None:
        """Say whether an operation may be run again, once it is known what it computed."""
        self.settle(operation)
        if operation.computed is Computed.COPY:
            writes = [write for read in operation.reads for write in read.writes]
            operation.computes = any(write.operation.computes for write in writes)
            boundary = known.name in ("copy_", "_foreach_copy_")
            operation.live = operation.computes or not boundary

    def settle(self, operation: Operation) -> None:
        """Limit how far back an operation reaches; what is captured is never run again."""
        if self.uses is not None:
            operation.computed = Computed.UNKNOWN
            operation.args, operation.kwargs, operation.reads = [], {}, ()
            return
        depth = 0
        for read in operation.reads:  # a plain loop: this is done for every operator
            for write in read.writes:
                depth = max(depth, write.operation.depth)
        if depth >= MOST_DEPTH:
            operation.computed = Computed.UNKNOWN
        if operation.computed is Computed.UNKNOWN:
            operation.args, operation.kwargs, operation.reads = [], {}, ()
        else:
            operation.depth = depth + 1
        operation.live = operation.computes = operation.computed is Computed.YES

    # -- what is of no interest --------------------------------------------------------------------

    def _is_of_no_interest(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether an operator is one of those whose results are only said to be computed."""
        begins, activations = self._begin_in_whole_numbers(args)
        if kwargs and not begins:
            read = [each for name, each in kwargs.items() if name not in known.written]
            begins = any(self._begin_in_whole_numbers([each])[0] for each in tensors_in(read))
        if not begins and not self._everything:
            return True
        return not known.written and (known.heavy or activations)

    def _begin_in_whole_numbers(self, args: Any) -> tuple[bool, bool]:
        """Whether whole numbers, or what follows from them, are among arguments, or no tensors are.

        And whether activations are among them.
        """
        none, begins, activations = True, False, False
        for each in args:
            if each.__class__ in PLAIN:
                none = False
                memory = self.memories.get(each)
                begins = begins or is_whole(each.dtype)
                if memory is not None:
                    begins = begins or has_beginning(memory)
                    activations = activations or memory.activation
            elif each.__class__ in (list, tuple):
                tensors = tensors_in(each)  # None is among them for table[:, places]
                if tensors:
                    none = False
                    begins = begins or self._begin_in_whole_numbers(tensors)[0]
        return none or begins, activations

    def _change(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> None:
        """Note that arguments were written, and nothing of how."""
        where = self.line()
        self.at += 1
        for each, written in known.traits.tensors(args, kwargs):
            if written is not None:
                self.changed(each, where)

    def tell_of_spoiled(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> None:
        """Tell of arguments that another graph has overwritten, unless they are only written.

        Memory of which all is written holds what is written from then on.
        """
        anew: list[Memory] = []
        for tensor, written in known.traits.tensors(args, kwargs):
            memory = self.memories.get(tensor)
            if memory is None or memory not in self.spoiled:
                continue
            if written is None or written.reads:
                self.tell_of_read(memory)
            elif tensor.nbytes >= memory.nbytes:
                anew.append(memory)
        for memory in anew:
            self.spoiled.pop(memory, None)

    def tell_of_read(self, memory: Memory, where: str = "") -> None:
        """Tell of memory that is read, if another graph has overwritten it: once in a test.

        It is read by the line at work if ``where`` does not say.
        """
        tell = self.spoiled.get(memory)
        if tell is not None and memory not in self.told:
            self.told.add(memory)
            tell(where or self.line())

    def changed(self, tensor: Tensor, where: str) -> None:
        """Note that something wrote a tensor, and nothing of how."""
        memory = self.meet(tensor)
        if memory is not None:
            self._forget(memory, where)

    def _forget(self, memory: Memory, where: str) -> None:
        self.uncomputed.filled(memory)
        memory.version += 1
        memory.writes, memory.live, memory.activation = ACTIVATION, False, False
        memory.filled, memory.where, memory.at = -1, where, self.at

    def _activate(self, known: KnownOperator, result: Any) -> None:
        for each in tensors_in(result):
            met = self.memories.met(each)
            if met is not None and met[1]:
                memory = met[0]
                memory.writes, memory.version = ACTIVATION, 1
                memory.activation = known.kind is not Kind.LIFT and not is_whole(each.dtype)

    # -- memory ------------------------------------------------------------------------------------

    def meet(self, tensor: Tensor) -> Memory | None:
        """Return the memory of an argument; None: it has none that can be followed.

        Within a capture it may be memory that was handed out past the dispatcher: the uses of the
        graph note that it was not known before.
        """
        found = self.memories.met(tensor)
        if found is None:
            return None
        memory, is_new = found
        if is_new and self.uses is not None:
            self.uses.met.append(memory)
        return memory

    def appeared(self, kind: Kind, result: Any) -> None:
        """Note memory that was handed out, or that came from the host."""
        memory = self.memories.of(result) if isinstance(result, Tensor) else None
        if memory is None:
            return
        if kind is Kind.EMPTY:
            memory.filled, memory.where = 0, self.line()
            memory.allocated = memory.where
        else:
            memory.where = memory.where or self.line()
            if memory.writes:
                return
            self.keep(memory, result)
        if self.uses is not None:
            self.uses.owns(memory)

    def keep(self, memory: Memory, tensor: Tensor) -> None:
        """Keep the values of small memory of the host, should it be gone when they are needed."""
        if memory.nbytes > KEPT_BYTES or self.uses is not None:
            return
        self.at += 1
        with self.pause():
            value = tensor.detach().clone()
        made = Operation(value.clone, self.line(), self.at)
        made.computed, made.depth = Computed.CONSTANT, 1
        memory.writes = (Write(made, 0, part_of(tensor)),)

    def _results(self, operation: Operation, result: Any) -> None:
        for output, each in enumerate(tensors_in(result)):
            met = self.memories.met(each)
            if met is not None and met[1]:
                memory = met[0]
                memory.writes = (Write(operation, output, part_of(each)),)
                memory.live, memory.at, memory.where = operation.live, self.at, operation.where
                memory.version += 1
                if self.uses is not None:
                    self.uses.owns(memory)

    def written(self, memory: Memory, write: Write, *, reads: bool, put: int | None = None) -> None:
        """Note a write to a part of memory.

        Args:
            memory: It.
            write: The write.
            reads: What lies there then depends on what was there.
            put: How many elements are overwritten, where not all of the part is.

        """
        part = write.part
        assert part is not None, "only what is unknown covers no part"
        count = part.shape.numel()
        if memory.filled >= 0:
            added = put if put is not None else UNKNOWN if reads else count
            memory.filled = -1 if added == UNKNOWN else memory.filled + added
        if self.uses is not None and memory.owner is not self.uses:
            self._graph_writes(memory, part, write.operation.where)
            return  # it happens at a replay
        memory.held()  # an operator makes an ``out=`` as large as its result
        memory.version += 1
        memory.where, memory.at = write.operation.where, write.operation.at
        memory.activation = False
        if not reads and count * part.dtype.itemsize >= memory.nbytes:
            memory.writes = (write,)
        elif reads and is_state(memory):
            memory.writes = (Write(unknown_operation(write.operation), 0, part),)
        else:
            memory.writes = (*still_there(memory.writes, part, reads), write)
            if len(memory.writes) > MOST_OVERLAYS:
                memory.writes = (Write(unknown_operation(write.operation), 0, part),)
        memory.live = any(each.operation.live for each in memory.writes)

    # -- what a graph uses -------------------------------------------------------------------------

    def _places(self, tensor: Tensor, where: str) -> None:
        assert self.uses is not None, "a capture is under way"
        memory = self.memories.of(tensor)
        if memory is not None and memory.owner is not self.uses:
            self.uses.places.setdefault(memory, where)

    def _graph_writes(self, memory: Memory, part: Part, where: str) -> None:
        assert self.uses is not None, "a capture is under way"
        self.uses.writes.setdefault(memory, Use(where)).add(part)
        self.uses.pin(memory)

    def graph_reads(self, read: Read, tensor: Tensor, *, looks: bool = True) -> None:
        """Note what the graph whose capture is under way reads.

        Args:
            read: Which memory, and which part of it.
            tensor: The argument.
            looks: Whether the values are looked at, and not only kept beside those that are put.

        """
        uses, memory = self.uses, read.memory
        assert uses is not None, "a capture is under way"
        if memory.owner is uses:
            if looks and 0 <= memory.filled < (count := read.part.elements()):
                told = Unfilled(memory, memory.allocated, self.line(), memory.filled, count)
                uses.unfilled.append(told)
                memory.filled = -1  # once
            return
        if memory not in uses.reads:
            uses.reads[memory] = Use(self.line())
            uses.pin(memory)
        uses.name(memory, tensor, self.line)
        uses.reads[memory].add(read.part)

    def number_read(self, tensor: Tensor, value: Any) -> None:
        """Note that the host has read a number from a tensor."""
        memory = self.memories.of(tensor)
        if memory is not None:
            read = Read(memory, memory.version, memory.writes, part_of(tensor), False, False)
            self.host.add(HostNumber(read, value, self.line(), self.at))
