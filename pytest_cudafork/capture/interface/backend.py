"""What a way to capture graphs has to offer, and the values that pass through this interface.

The software graph and real CUDA graphs implement it. It does not import torch.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

CAPTURES_ITSELF = (
    "where the function captures by itself (torch.cuda.graph, or "
    "torch.compile(mode='reduce-overhead')), leave that to it: --cuda-fork-captures checks the "
    "graphs of a test that calls it, and assert_replay_equals_eager(..., replay=) those that it "
    "hands over"
)
"""What to do where a function that is to be captured turns out to capture."""


def describe(tensor: Any) -> str:
    """Return a tensor's type and shape as a reader knows them: ``float32[4, 8]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def extent(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Return over how many elements of its memory a tensor spreads, from its first to its last."""
    last = 0
    for size, step in zip(shape, stride, strict=True):
        if not size:
            return 0
        last += (size - 1) * step
    return last + 1


class GraphNode(NamedTuple):
    """One piece of work in a graph, or in an eager run that was recorded."""

    kind: str  # "op", "triton", "kernel", "memcpy", "memset", "host", "other"
    name: str  # of the op or kernel, as the user would search for it
    where: str = ""  # file:line of the innermost line of user code that issued it; "": unknown


class MemoryUse(NamedTuple):
    """A storage that recorded work reads or writes."""

    pointer: int  # address of the storage's first byte
    nbytes: int
    reads: bool
    writes: bool
    owned: bool  # allocated within the recorded work
    tensor: str  # as a reader knows it: "float32[4, 8]"
    node: int  # index of the first node that uses it


class Region(NamedTuple):
    """A part of a storage that one piece of work reads or writes: what a tensor covers."""

    storage: int  # the same for all regions of a storage, within one recording
    pointer: int  # address of the storage's first byte
    first: int  # address of the region's first byte
    end: int  # address after its last byte
    tensor: str  # as a reader knows it: "float32[4, 8]"
    find: Callable[[], Any]  # returns the storage; None where it is gone

    @classmethod
    def under(cls, tensor: Any, storage: int, pointer: int, find: Callable[[], Any]) -> Region:
        """Return what a tensor covers of its storage, which lies at ``pointer``."""
        size = tensor.element_size()
        first = pointer + tensor.storage_offset() * size
        end = first + extent(tensor.shape, tensor.stride()) * size
        return cls(storage, pointer, first, end, describe(tensor), find)

    def overlaps(self, other: Region) -> bool:
        """Whether both cover the same byte, as far as addresses tell."""
        return self.first < other.end and other.first < self.end

    def note(self, known: tuple[list[Region], list[Region]], *, reads: bool, writes: bool) -> None:
        """Add it to what a piece of work reads, and to what it writes, where that is so."""
        if reads:
            known[0].append(self)
        if writes:
            known[1].append(self)


class Work(NamedTuple):
    """One operator or launch, in order, with the memory it uses."""

    name: str
    where: str  # file:line of user code; "": unknown
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    exact: bool  # False: what it reads and what it writes is not known, all counts as both


@dataclasses.dataclass(frozen=True)
class CaptureFinding:
    """One thing that is wrong, in the words of a failure."""

    check: str  # a ``CheckName``; the reference lists them
    what: str  # one sentence with the values
    path: str = ""  # of the object within state, inputs or outputs: "state.plan"
    where: str = ""  # file:line of the user's code
    why: str = ""  # why it matters
    todo: str = ""  # what to do next


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a function did. ``None`` stands for "cannot be told", with the reason in words."""

    result: Any  # what the function returned
    nodes: tuple[GraphNode, ...] | None
    uses: tuple[MemoryUse, ...] | None
    why_not: str = ""
    work: tuple[Work, ...] | None = None


class Capture(abc.ABC):
    """A captured graph. ``recording.result`` holds its static outputs."""

    recording: Recording
    findings: tuple[
        CaptureFinding, ...
    ] = ()  # seen in the capture itself; it succeeded all the same

    @abc.abstractmethod
    def replay(self) -> None:
        """Run the graph once and wait for it. Raises :class:`ReplayFailedError`."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Let go of the graph, its static outputs and its memory. Twice does no harm."""


class GraphBackend(abc.ABC):
    """A way to capture graphs. It holds no capture."""

    name: ClassVar[str]  # "software", "cuda"

    @abc.abstractmethod
    def why_not(self) -> str | None:
        """Why it cannot be used in this process, in words; None: it can. Initializes nothing."""

    @property
    @abc.abstractmethod
    def device(self) -> str:
        """Where the tensors of a test have to lie: "cpu", "cuda"."""

    def device_of(self, tensor: Any) -> Any:
        """Return the ``torch.device`` that a tensor lies on, as the code under test is told."""
        return tensor.device

    @abc.abstractmethod
    def new_pool(self) -> Any:
        """Memory that several captures may share, for ``capture(pool=...)``."""

    @abc.abstractmethod
    def record(self, fn: Callable[[], Any]) -> Recording:
        """Run ``fn`` eagerly, as a warm-up, and record what it does. Its exceptions pass."""

    @abc.abstractmethod
    def capture(self, fn: Callable[[], Any], *, pool: Any = None) -> Capture:
        """Capture ``fn``: it is run once and its work recorded, not executed.

        Raises :class:`CaptureFailedError` where the work cannot be captured. Exceptions of ``fn``
        that have another cause pass; in both cases the device is usable afterwards.
        """

    def beside_graphs(self) -> contextlib.AbstractContextManager[object]:
        """Return what is in force while a check runs code eagerly, beside its graphs."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for all work of the device."""

    @abc.abstractmethod
    def differences(self) -> str:
        """Where its answer can differ from what a CUDA graph does, in words; "": nowhere."""
