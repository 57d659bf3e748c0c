"""Running recorded operations again, on what their inputs hold now.

Nothing of the user's is changed: results go to memory of their own. On a GPU operators run again on
copies on the CPU, where a bad index is an exception and not the end of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.judge.dependencies import CannotTellError, HistoryError, is_settled
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.record.memory import Memory, Part
from pytest_cudafork.capture.record.recorder import silently
from pytest_cudafork.capture.record.values import Computed, Operation, Place, Read, Write
from pytest_cudafork.capture.state.compare import Tolerance, elements_wrong, number

_CPU = torch.device("cpu")
_MOST = 256 << 20
"""Bytes of one storage that are computed again, at most."""
_MOST_MOVED = 64 << 20
"""Bytes of one tensor that are brought to the CPU for it, at most."""
_OPEN = object()


class Again:
    """One round of computing again, in which memory does not change.

    Args:
        as_recorded: take inputs that the same line has not refreshed as what they were then, as
            far as they can be computed; otherwise take what they hold now.

    """

    def __init__(self, *, as_recorded: bool = False) -> None:
        self._as_recorded = as_recorded
        self._memo: dict[Any, Any] = {}

    def result(self, write: Write, *, base: str = "") -> Tensor:
        """Return what a write would write now.

        ``base`` says on what memory a kernel works that reads what it writes: "zeros" or "memory";
        "": on what lay there before it.

        Raises:
            CannotTellError: it cannot be computed.

        """
        made: Tensor = self._run(write.operation, base)[write.output]
        return made

    def value(self, read: Read) -> Tensor:
        """Return what an argument would be now.

        Raises:
            CannotTellError: it cannot be computed.

        """
        memory, storage = read.memory, read.memory.held()
        old = storage is None or read.written
        if self._as_recorded and not old and read.writes is not memory.writes and read.writes:
            computed = all(write.operation.computes for write in read.writes)
            old = computed and _lines(read.writes) != _lines(memory.writes)
        if old:
            if storage is None and not read.writes:
                raise CannotTellError("an input is gone")
            return read.part.view(self._contents(memory, read.writes, newest=False), memory.device)
        if memory.live:
            return read.part.view(self._contents(memory, memory.writes, newest=True), memory.device)
        return read.part.view(storage, memory.device)

    def _contents(self, memory: Memory, writes: tuple[Write, ...], *, newest: bool) -> Any:
        """Return a storage with what memory would hold after these writes."""
        key = memory, tuple(map(id, writes))
        found = self._memo.get(key)
        if found is _OPEN:
            raise HistoryError("it depends on itself")
        if found is not None:
            return found
        if memory.nbytes > _MOST:
            raise CannotTellError("it is too large to be computed again")
        self._memo[key] = _OPEN
        storage = memory.held()
        raw = torch.empty(memory.nbytes, dtype=torch.uint8, device=memory.device)
        if storage is not None:
            raw.copy_(memory.bytes())
        scratch = raw.untyped_storage()
        for write in writes:
            if write.operation.computed is Computed.UNKNOWN:
                if storage is None:
                    raise CannotTellError("an input is gone")
                continue
            assert write.part is not None, "only what is unknown covers no part"
            view = write.part.view(scratch, memory.device)
            if newest and (not write.operation.live or is_settled(memory, write)):
                view.copy_(write.part.view(storage, memory.device))
            else:
                view.copy_(self._run(write.operation)[write.output])
        self._memo[key] = scratch
        return scratch

    def _run(self, operation: Operation, base: str = "") -> dict[int, Tensor]:
        """Return the results of an operation, and at ``~index`` what it writes."""
        key = operation, base
        if key in self._memo:
            found: dict[int, Tensor] = self._memo[key]
            return found
        if operation.computed is Computed.UNKNOWN or operation.run is None:
            raise CannotTellError("it cannot be run a second time")
        targets: list[Tensor] = []
        args = [self._real(operation, each, targets, base) for each in operation.args]
        kwargs = {
            name: self._real(operation, each, targets, base)
            for name, each in operation.kwargs.items()
        }
        try:
            result = operation.run(*args, **kwargs)
        except Exception as error:
            raise CannotTellError(f"running it again raised {type(error).__name__}") from None
        made = {
            **dict(enumerate(tensors_in(result))),
            **{~at: each for at, each in enumerate(targets)},
        }
        self._memo[key] = made
        return made

    def _real(self, operation: Operation, value: Any, targets: list[Tensor], base: str) -> Any:
        """Return an argument with tensors in the place of what stands for them."""
        if value.__class__ is Read:
            return self._tensor(operation, value, targets, base)
        if value.__class__ is Place:
            part = value.part
            device = value.device if operation.launch else _CPU
            made = torch.empty_strided(part.shape, part.stride, dtype=part.dtype, device=device)
            targets.append(made)
            return made
        if value.__class__ is list:
            return [self._real(operation, each, targets, base) for each in value]
        if value.__class__ is torch.device and not operation.launch and value.type == "cuda":
            return _CPU
        return value

    def _tensor(self, operation: Operation, read: Read, targets: list[Tensor], base: str) -> Tensor:
        if read.written and (base or operation.overwrites):
            found = _as_it_lies(read)
            found = torch.zeros_like(found) if base == "zeros" else found
        else:
            found = self.value(read)
        if found.is_cuda and not operation.launch:
            if found.numel() * found.element_size() > _MOST_MOVED:
                raise CannotTellError("it is too large to be computed again")
            found = found.cpu()
        if read.written:
            own = torch.empty_strided(
                found.shape, found.stride(), dtype=found.dtype, device=found.device
            )
            found = own.copy_(found)
            if read.target:
                targets.append(found)
        return found


def _as_it_lies(read: Read) -> Tensor:
    memory = read.memory
    storage = memory.held()
    if storage is None:
        blank = torch.empty(memory.nbytes, dtype=torch.uint8, device=memory.device)
        storage = blank.untyped_storage()
    return read.part.view(storage, memory.device)


def _lines(writes: Iterable[Write]) -> set[str]:
    return {write.operation.where for write in writes}


def difference(memory: Memory, write: Write, parts: Iterable[Part], again: Again) -> str:
    """Return the first difference between memory and what a write to it would give now, in words.

    Only elements count that the write wrote last and that lie in one of the parts. "": there is
    none.

    Raises:
        CannotTellError: it cannot be computed.

    """
    parts = list(parts)
    with silently():
        assert write.part is not None, "only what is unknown covers no part"
        storage = memory.held()
        scratch = memory.bytes().clone().untyped_storage()
        write.part.view(scratch, memory.device).copy_(again.result(write))
        mine = _written_last(memory, write, parts)
        for part in parts:
            held, new = part.view(storage, memory.device), part.view(scratch, memory.device)
            differs = _differs(held, new)
            if mine is not None:
                differs &= as_bytes(part).view(mine, memory.device).bool()
            if bool(differs.any()):
                at = int(differs.reshape(-1).to(torch.uint8).argmax())
                was, now = held.reshape(-1)[at].item(), new.reshape(-1)[at].item()
                return f"element {at} is {number(was)} and would be {number(now)}"
    return ""


def _written_last(memory: Memory, write: Write, parts: list[Part]) -> Any:
    """Return a storage of one byte an element, 1 where a write has written last; None: all is."""
    if len(memory.writes) < 2 or write is memory.writes[-1]:
        return None
    mine = last_writers(memory, parts, lambda each: each is write)
    if mine is None:
        raise CannotTellError("its memory is seen as tensors of several types")
    return mine


def last_writers(memory: Memory, parts: Iterable[Part], mark: Callable[[Write], bool]) -> Any:
    """Return a storage of one byte an element, 1 where the last write to it is a marked one.

    None: writes, or the parts that are of interest, see elements of several sizes.
    """
    sizes = {each.part.dtype.itemsize for each in memory.writes if each.part is not None}
    sizes |= {part.dtype.itemsize for part in parts}
    if len(sizes) != 1:
        return None
    count = memory.nbytes // sizes.pop()
    marked = torch.zeros(count, dtype=torch.int8, device=memory.device).untyped_storage()
    for each in memory.writes:
        if each.part is not None:
            as_bytes(each.part).view(marked, memory.device).fill_(1 if mark(each) else 0)
    return marked


def as_bytes(part: Part) -> Part:
    """Return a part of a storage that has one byte for each element of another one."""
    return part._replace(dtype=torch.int8, conjugate=False, negative=False)


def _differs(held: Tensor, new: Tensor) -> Tensor:
    near = 1e-5 if held.dtype.itemsize >= 4 else 2e-2
    return elements_wrong(new, held, Tolerance(near, near * 1e-2))
