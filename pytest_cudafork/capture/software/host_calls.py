"""Refuses calls that reach the host without an operator: tolist, numpy, print, optimizers, ...

No dispatch mode sees them. Attributes of torch are replaced for the length of a capture; what other
threads call does what it always does.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_cudafork.capture.interface.backend import describe
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import is_library
from pytest_cudafork.capture.operators.refusal_words import (
    CHECKPOINT,
    SPLIT_WHY,
    Refusals,
    runs_in,
)
from pytest_cudafork.capture.software.memory import Memories
from pytest_cudafork.capture.software.places import OnHost
from pytest_cudafork.compat.torch_graphs import (
    OPTIMIZER_CHECKS,
    is_device_set,
    know_functions_that_make_tensors,
)
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_READS = {
    "tolist": "tolist()",
    "numpy": "numpy()",
    "__array__": "a conversion to a numpy array",
    "cpu": "cpu()",
    "__repr__": "printing",
    "__format__": "formatting",
}
_HIGHER_ORDER = "torch._higher_order_ops"
_TRANSFORMS = "torch._functorch.eager_transforms"
"""In torch 2.11 it adds up numbers of elements in a tensor, which never leaves the host."""
_BRINGS = ("from_numpy", "frombuffer")
_SEEDS = ("manual_seed", "seed", "set_rng_state")
_CPU = re.compile(r"""["']cpu\b""")


class HostCalls:
    """Refuses them in the thread that captures; other threads are not affected."""

    def __init__(
        self, refusals: Refusals, memories: Memories, on_host: OnHost | None = None
    ) -> None:
        self._refusals = refusals
        self._memories = memories
        self._on_host = on_host
        self._owner = threading.get_ident()

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """For the length of a ``with``."""
        know_functions_that_make_tensors()
        with UndoStack() as undo:
            for name, call in _READS.items():
                undo.set(Tensor, name, self._reading(name, call))
            undo.set(Tensor, "to", self._to())
            undo.set(Tensor, "type_as", self._type_as())
            undo.set(Tensor, "new_tensor", self._new_tensor())
            for where in (torch, Tensor):
                undo.set(where, "tensor_split", self._split(where))
            for name in _BRINGS:
                undo.set(torch, name, self._bringing(name))
            undo.set(torch, "tensor", self._tensor())
            undo.set(torch, "as_tensor", self._as_tensor("as_tensor"))
            undo.set(torch, "asarray", self._as_tensor("asarray"))
            for module in (torch, torch.random):
                for name in _SEEDS:
                    undo.set(module, name, self._seeding(module, name))
            for name in OPTIMIZER_CHECKS:
                if hasattr(Optimizer, name):
                    undo.set(Optimizer, name, self._optimizer_check())
            yield

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._owner

    def _known_to_host(self, tensor: Tensor) -> bool:
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided:
            return True
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            return True  # a subclass says itself what it does
        memory = self._memories.get(tensor)
        return (memory is not None and memory.host) or self._lies_on_host(tensor) is True

    def _lies_on_host(self, tensor: Tensor) -> bool | None:
        return None if self._on_host is None else self._on_host(tensor)

    def _reading(self, name: str, call: str) -> Any:
        original = getattr(Tensor, name)

        @functools.wraps(original)
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._elsewhere() or self._known_to_host(tensor):
                return original(tensor, *args, **kwargs)
            if name == "cpu" and self._lies_on_host(tensor) is False:
                return original(tensor, *args, **kwargs)  # what knows that judges the copy
            return self._refusals.sync(f"{call} of {describe(tensor)}")

        return read

    def _to(self) -> Any:
        original = Tensor.to

        @functools.wraps(original)
        def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._elsewhere() or self._lies_on_host(tensor) is not None:
                return original(tensor, *args, **kwargs)  # what knows where it lies judges the copy
            if not self._asks_for_cpu(args, kwargs):
                asked = _device_in(args, kwargs) is not None or self._on_device(args, kwargs)
                if asked and self._is_of_host(tensor):
                    self._refusals.host_data("to(device) of a number of the host")
                return original(tensor, *args, **kwargs)
            if not self._known_to_host(tensor):
                self._refusals.sync(f"to('cpu') of {describe(tensor)}")
            return original(tensor, *args, **kwargs)

        return to

    def _type_as(self) -> Any:
        original = Tensor.type_as

        @functools.wraps(original)
        def type_as(tensor: Tensor, other: Tensor) -> Any:
            of_host = self._is_of_host(tensor) or self._lies_on_host(tensor) is True
            if not self._elsewhere() and of_host and self._on_device((other,), {}):
                self._refusals.host_data("type_as(tensor) of a number of the host")
            return original(tensor, other)

        return type_as

    def _is_of_host(self, tensor: Any) -> bool:
        memory = self._memories.get(tensor) if type(tensor) is Tensor else None
        return memory is not None and memory.host

    def _on_device(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether a tensor is asked to be like another one, which lies on the device."""
        other = kwargs.get("other", args[0] if args else None)
        return isinstance(other, Tensor) and not self._known_to_host(other)

    def _asks_for_cpu(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the line says "cpu". A device in a variable is the device of the test."""
        device = _device_in(args, kwargs)
        if device is None or torch.device(device).type != "cpu":
            return False
        line = _line_of_caller(sys._getframe(1))
        return bool(_CPU.search(line)) if line else isinstance(device, str)

    def _split(self, where: Any) -> Any:
        original = where.tensor_split

        @functools.wraps(original)
        def split(*args: Any, **kwargs: Any) -> Any:
            given = [*args[1:2], kwargs.get("tensor_indices_or_sections")]
            for each in given:
                if not isinstance(each, Tensor) or self._elsewhere() or self._known_to_host(each):
                    continue
                self._refusals.refuse(
                    f"tensor_split at {{where}} reads its places in {describe(each)}",
                    SPLIT_WHY,
                    "give the places as numbers of Python",
                )
            return original(*args, **kwargs)

        return split

    def _bringing(self, name: str) -> Any:
        original = getattr(torch, name)

        @functools.wraps(original)
        def bring(*args: Any, **kwargs: Any) -> Any:
            if self._elsewhere() or self._on_host is not None:
                return original(*args, **kwargs)
            return self._refusals.host_data(f"torch.{name}")

        return bring

    def _tensor(self) -> Any:
        original = torch.tensor

        @functools.wraps(original)
        def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._elsewhere() and self._brings(data, kwargs):
                caller = sys._getframe(1).f_globals.get("__name__", "")
                if isinstance(data, (int, float)) and caller.startswith(_HIGHER_ORDER):
                    # Compiled, which is how they are used, they have no such constants.
                    return torch.full((), data, *args, **kwargs)
                if caller == _TRANSFORMS and _stays_on_host(kwargs):
                    return torch.stack([original(each, *args, **kwargs) for each in data])
                self._refusals.host_data("torch.tensor")
            return original(data, *args, **kwargs)

        return tensor

    def _new_tensor(self) -> Any:
        original = Tensor.new_tensor

        @functools.wraps(original)
        def new_tensor(tensor: Tensor, data: Any, *args: Any, **kwargs: Any) -> Any:
            here = self._elsewhere() or self._lies_on_host(tensor) is True
            if not here and not isinstance(data, Tensor):
                self._refusals.host_data("new_tensor")
            return original(tensor, data, *args, **kwargs)

        return new_tensor

    def _as_tensor(self, name: str) -> Any:
        original = getattr(torch, name)

        @functools.wraps(original)
        def as_tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._elsewhere() and self._brings(data, kwargs):
                self._refusals.host_data(f"torch.{name}")
            return original(data, *args, **kwargs)

        return as_tensor

    def _brings(self, data: Any, kwargs: dict[str, Any]) -> bool:
        """Whether data of the host is to lie on the device.

        One number without a device stays on the host, and is passed by value where it is used; so
        does all data where it is known where tensors lie. In a ``with torch.device(...)`` every
        tensor has a device.
        """
        if isinstance(data, Tensor):
            return False
        if self._on_host is not None and _asks_for_host(kwargs):
            return False
        many = hasattr(data, "__len__") or bool(getattr(data, "shape", ()))
        return (many and self._on_host is None) or not _stays_on_host(kwargs)

    def _seeding(self, module: Any, name: str) -> Any:
        original = getattr(module, name)

        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            if self._elsewhere():
                return original(*args, **kwargs)
            if name == "manual_seed" and _is_the_seed(args, kwargs):
                return torch.default_generator  # torch takes that on CUDA, and changes nothing
            todo = "seed before the replay"
            if runs_in(CHECKPOINT):
                todo = (
                    "call checkpoint(..., preserve_rng_state=False): it saves and sets the random "
                    "state otherwise. (Then dropout within it draws anew in the recomputation)"
                )
            return self._refusals.refuse(
                f"torch.{name} at {{where}} sets the random state within a capture",
                "a graph reads the state of the generator when it is replayed; CUDA refuses to "
                "seed it while a stream is capturing",
                todo,
                check="capture-failed",
            )

        return seed

    def _optimizer_check(self) -> Any:
        """Refuse steps as torch does in a CUDA graph; without a GPU it does not ask."""

        def check(optimizer: Any) -> None:
            capturable = all(group.get("capturable", True) for group in optimizer.param_groups)
            if not capturable and not self._elsewhere():
                self._refusals.refuse(
                    f"the step of {type(optimizer).__name__} at {{where}} cannot be captured: it "
                    "is made with capturable=False",
                    "its step counter is a number of the host, which a graph would keep from the "
                    "capture; torch raises a RuntimeError here on CUDA",
                    "make it with capturable=True; and with fused=True (Adam, AdamW), as torch "
                    "takes capturable=True without it on a GPU only. For other optimizers use the "
                    "backend 'cuda'",
                    check="capture-failed",
                )

        return check


def _is_the_seed(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the default generator was seeded with this number already."""
    seed = kwargs.get("seed", args[0] if args else None)
    return isinstance(seed, int) and seed % 2**64 == torch.initial_seed() % 2**64


def _device_in(args: Any, kwargs: dict[str, Any]) -> Any:
    """The device that ``Tensor.to`` is asked for."""
    device = kwargs.get("device", args[0] if args else None)
    return device if isinstance(device, (str, torch.device)) else None


def _asks_for_host(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cpu"


def _stays_on_host(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("device") is None and not is_device_set()


def _line_of_caller(frame: FrameType | None) -> str:
    """The text of the line that called torch; "" where there is none, as with ``exec``."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)
