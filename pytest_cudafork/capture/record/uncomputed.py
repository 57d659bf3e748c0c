"""Results of graphs that no replay has computed yet, and what is computed of them meanwhile.

Whoever captures piece by piece runs what lies between the pieces on such results, and throws away
what comes out of it. So they are followed, and told of once the host takes a value for an answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.record.memory import Memories, Memory
from pytest_cudafork.capture.record.operators import KnownOperator

_MOST_OPERATORS = 1000
"""How many operators after a capture are followed: graphs of sizes that no batch has wait for ever.
"""

Tell = Callable[[str, str], None]
"""What is called when the host reads such memory: with the line that took it first, and that one.
"""


class _Unknown(NamedTuple):
    """What is known of memory that holds no values yet."""

    tell: Tell
    taken: str  # the line that has first read a result for it; "": it is the result


class Uncomputed:
    """The memory of one thread that holds nothing yet, or what follows from it.

    Attributes:
        waits: whether there may be any; asked for each operator.

    """

    def __init__(self, memories: Memories) -> None:
        self.waits = False
        self._left = 0
        self._memories = memories
        self._found: weakref.WeakKeyDictionary[Memory, _Unknown] = weakref.WeakKeyDictionary()
        self._told: weakref.WeakKeyDictionary[Memory, tuple[_Unknown, int]] = (
            weakref.WeakKeyDictionary()
        )
        """Those of which it was told in this test, with the version of their memory then."""

    def add(self, memory: Memory, tell: Tell) -> None:
        """Follow memory that a replay has yet to fill."""
        self._found[memory] = _Unknown(tell, "")
        self.waits, self._left = True, _MOST_OPERATORS

    def another_test_begins(self) -> None:
        """Tell of this one, too, what is still so: none may pass because another one has failed."""
        for memory, (known, version) in list(self._told.items()):
            if memory.version == version:
                self.add(memory, known.tell)
        self._told.clear()

    def filled(self, memory: Memory) -> None:
        """Note that something has written memory, whatever it was."""
        self._told.pop(memory, None)
        if self.waits:
            self._found.pop(memory, None)
            self.waits = bool(self._found)

    def host_reads(self, tensor: Tensor, line: Callable[[], str]) -> None:
        """Tell of a tensor whose values the host takes, once in a test."""
        memory = self._memories.get(tensor)
        known = None if memory is None else self._found.pop(memory, None)
        if memory is not None and known is not None:
            self._told[memory] = known, memory.version
            where = line()
            known.tell(known.taken or where, where)

    def follow(
        self,
        known: KnownOperator,
        args: Any,
        kwargs: dict[str, Any],
        run: Callable[[], Any],
        line: Callable[[], str],
    ) -> Any:
        """Run an operator, and follow what it makes of such memory."""
        self._left -= 1
        if not self._left:
            self._found.clear()
            self.waits = False
            return run()
        read, written = [], []
        for tensor, how in known.traits.tensors(args, kwargs):
            if how is None or how.reads:
                read.append(tensor)
            if how is not None:
                written.append(tensor)
        of = [each for each in read if self._known_of(each) is not None]
        unknown = self._known_of(of[0]) if of else None
        if unknown is not None and not unknown.taken:
            unknown = unknown._replace(taken=line())
        result = run()
        made = [*written, *tensors_in(result)]
        if of and (known.kind is Kind.SYNC or _leaves_the_device(of, made)):
            for each in of:
                self.host_reads(each, line)
            return result
        if not known.traits.shape_only:
            self._spread(made, unknown)
        return result

    def _known_of(self, tensor: Tensor) -> _Unknown | None:
        memory = self._memories.get(tensor)
        return None if memory is None else self._found.get(memory)

    def _spread(self, made: list[Tensor], unknown: _Unknown | None) -> None:
        for each in made:
            memory = self._memories.of(each)
            if memory is None:
                continue
            if unknown is None:
                self._found.pop(memory, None)
            else:
                self._found[memory] = unknown
        self.waits = bool(self._found)


def _leaves_the_device(of: list[Tensor], made: list[Tensor]) -> bool:
    return any(each.is_cuda for each in of) and any(not each.is_cuda for each in made)
