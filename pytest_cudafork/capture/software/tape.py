"""What the software graph replays: the recorded steps in order, and the memory they work on.

A tensor is recorded as a place: memory, offset, shape, strides, dtype. At a replay places on memory
from outside are looked up anew, once, so that freed memory is noticed and not kept alive. A step is
the call of an operator; its results are copied to the places that the capture gave away.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.backend import CaptureFinding, GraphNode
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.software.memory import Memory
from pytest_cudafork.capture.software.pool import poison
from pytest_cudafork.compat.torch_graphs.tensors import conjugated, negated
from pytest_cudafork.errors import ReplayFailedError

__tracebackhide__ = of_refusals


class UnlikeCaptureError(RuntimeError):
    """An operator gave another kind of result than at the capture; the user's code is not why."""


class Place:
    """Where a recorded tensor lies. ``tensor`` is there during a replay."""

    __slots__ = ("dtype", "memory", "negated", "offset", "shape", "stride", "tensor")

    def __init__(self, tensor: Tensor, memory: Memory) -> None:
        self.memory = memory
        self.offset = tensor.storage_offset()
        self.shape = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype
        self.negated = (tensor.is_conj(), tensor.is_neg())
        self.tensor: Any = None

    @classmethod
    def whole(cls, tensor: Tensor, memory: Memory) -> Place:
        """All the memory of a tensor, in a row."""
        made = cls(tensor, memory)
        count = memory.nbytes // tensor.element_size()
        made.offset, made.shape, made.stride = 0, torch.Size((count,)), (1,)
        return made

    def find(self) -> None:
        """Make the tensor."""
        storage = self.memory.storage()
        made = torch.empty(0, dtype=self.dtype, device="cpu")
        made.set_(storage, self.offset, self.shape, self.stride)
        if self.negated[0]:
            made = conjugated(made)
        if self.negated[1]:
            made = negated(made)
        self.tensor = made


class Wrapped(NamedTuple):
    """An argument of a kernel that holds a tensor in ``base``."""

    argument: Any
    base: Any

    def made(self) -> Any:
        """The argument with the tensor of this replay."""
        new = copy.copy(self.argument)
        new.base = resolve(self.base)
        return new


class Group(NamedTuple):
    """An argument that holds a process group, without what operators get it in."""

    group: Any

    def made(self) -> Any:
        """The argument, for one call."""
        return self.group.boxed()


def resolve(tree: Any) -> Any:
    """The tensors at the places in nested lists."""
    if type(tree) is Place:
        return tree.tensor
    if type(tree) is list:
        return [resolve(each) for each in tree]
    if type(tree) is dict:
        return {name: resolve(each) for name, each in tree.items()}
    if type(tree) in _MADE_ANEW:
        return tree.made()
    return tree


_MADE_ANEW = (Wrapped, Group)


def step_of(op: Any, args: list[Any], kwargs: dict[str, Any], fresh: Any) -> Callable[[], None]:
    """The call of ``op`` in a replay; results are copied to ``fresh``."""
    flat = not kwargs and not any(type(each) in (list, Group) for each in args)

    def call() -> Any:
        if flat:
            return op(*[each.tensor if type(each) is Place else each for each in args])
        return op(*resolve(args), **{name: resolve(each) for name, each in kwargs.items()})

    if fresh is None:
        return call

    def store() -> None:
        _store(call(), fresh)

    several = type(fresh) is not Place
    return _in_grad_mode(store) if several and torch.is_grad_enabled() else store


def _in_grad_mode(call: Callable[[], None]) -> Callable[[], None]:
    """A call with gradients on, as at the capture: some operators keep more for the backward."""

    def run() -> None:
        with torch.enable_grad():
            call()

    return run


def _store(result: Any, fresh: Any) -> None:
    if type(fresh) is Place:
        if not isinstance(result, Tensor):
            raise UnlikeCaptureError(
                f"gave {type(result).__name__} instead of a tensor of shape {list(fresh.shape)}"
            )
        if result.shape != fresh.shape:
            raise UnlikeCaptureError(
                f"its result has shape {list(result.shape)}, at the capture it had "
                f"{list(fresh.shape)}"
            )
        fresh.tensor.copy_(result)
    elif type(fresh) is list:
        if not isinstance(result, (list, tuple)) or len(result) != len(fresh):
            raise UnlikeCaptureError(f"gave other results than the {len(fresh)} of the capture")
        for each, place in zip(result, fresh, strict=True):
            _store(each, place)


class Tape:
    """What a replay does, in order."""

    def __init__(self) -> None:
        self._places: dict[Any, Place] = {}
        self._outside: list[Place] = []
        self._inside: list[Place] = []  # not looked up yet; that is not done in a capture, which
        # may run in inference mode
        self._steps: list[tuple[Callable[[], None], int]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def place(self, tensor: Tensor, memory: Memory) -> Place:
        """The place of a tensor; equal tensors share one."""
        key = (
            id(memory), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype,
            tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = Place(tensor, memory)
            self._note(found)
        return found

    def _note(self, place: Place) -> None:
        memory = place.memory
        held = memory.block is not None or memory.keep is not None
        (self._inside if held else self._outside).append(place)

    def add(self, step: Callable[[], None], node: int) -> None:
        """Record a step; ``node`` is the number of its node, -1: it has none."""
        self._steps.append((step, node))

    def add_poison(self, tensor: Tensor, memory: Memory) -> None:
        """Record that memory is to hold nothing from here on."""
        place = Place.whole(tensor, memory)
        self._note(place)
        self.add(lambda: poison(place.tensor), -1)

    def outside(self) -> list[Place]:
        """Places on memory that the graph does not own."""
        return self._outside

    def settle(self, place: Place) -> None:
        """Its memory is held from now on."""
        self._outside.remove(place)
        self._inside.append(place)

    def replay(self, nodes: tuple[GraphNode, ...]) -> None:
        """Run it once."""
        self._find(nodes)
        step = -1
        try:
            for run, node in self._steps:
                step = node
                run()
        except ReplayFailedError:
            raise
        except Exception as error:
            raise ReplayFailedError(_failed(error, nodes, step)) from error
        finally:
            for place in self._outside:
                place.tensor = None

    def _find(self, nodes: tuple[GraphNode, ...]) -> None:
        while self._inside:
            self._inside.pop().find()
        try:
            for place in self._outside:
                storage = place.memory.storage()
                if storage is None or storage.data_ptr() != place.memory.pointer:
                    raise ReplayFailedError(_freed(place.memory, nodes, storage is not None))
                place.find()
        except BaseException:
            for place in self._outside:
                place.tensor = None
            raise

    def clear(self) -> None:
        """Let go of everything."""
        self._places.clear()
        self._outside.clear()
        self._inside.clear()
        self._steps.clear()


def _node_at(nodes: tuple[GraphNode, ...], index: int) -> tuple[GraphNode, str]:
    """Return a node, and its place in words."""
    node = nodes[index] if 0 <= index < len(nodes) else GraphNode("op", "an operation")
    return node, f" ({shown(node.where)})" if node.where else ""


def _freed(memory: Memory, nodes: tuple[GraphNode, ...], moved: bool) -> CaptureFinding:
    verb = "reads" if memory.reads and not memory.writes else "uses"
    node, where = _node_at(nodes, memory.node)
    how = "was resized to other memory" if moved else "was freed"
    return CaptureFinding(
        "freed-memory",
        f"the replay {verb} memory that {how} after the capture: {memory.text} at "
        f"{memory.pointer:#x}, in {node.name}{where}",
        where=node.where,
        why="a graph holds the address, not the tensor; on a GPU it reads whatever lies there now",
        todo="keep that tensor alive as long as the graph (in the object that owns the graph), and "
        "fill it in place (copy_) instead of making a new one",
    )


def _failed(error: Exception, nodes: tuple[GraphNode, ...], step: int) -> CaptureFinding:
    node, where = _node_at(nodes, step)
    odd = isinstance(error, UnlikeCaptureError)
    if odd or (node.name.startswith("aten::") and isinstance(error, (AttributeError, TypeError))):
        words = str(error) if odd else f"{type(error).__name__}: {error}"
        return CaptureFinding(
            "not-judged",
            f"the software graph cannot replay {node.name}{where}: {words}",
            where=node.where,
            why="this is a limit, or a bug, of the software graph; it says nothing against the "
            "code under test",
            todo="test it with the backend 'cuda', or leave this operation outside the graph; "
            "please report it",
        )
    return CaptureFinding(
        "replay-differs",
        f"{node.name}{where} fails in the replay: {type(error).__name__}: {error}",
        where=node.where,
        why="on a GPU this is a device-side assertion or an illegal memory access, reported far "
        "from here",
        todo="look at what it read: an index out of range by far is memory that nothing wrote",
    )
