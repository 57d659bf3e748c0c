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
from pytest_cudafork.capture.software.own_thread import replace_here
from pytest_cudafork.capture.software.places import OnHost
from pytest_cudafork.compat.torch_graphs.functions import OPTIMIZER_CHECKS
from pytest_cudafork.compat.torch_graphs.modes import (
    handles_operators,
    is_device_set,
    know_functions_that_make_tensors,
)
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_READS = {
    "tolist": "tolist()",
    "numpy": "numpy()",
    "__array__": "a conversion to a numpy array",
    "__repr__": "printing",
    "__format__": "formatting",
}
_HIGHER_ORDER = "torch._higher_order_ops"
_TRANSFORMS = "torch._functorch.eager_transforms"
"""In torch 2.11 it adds up numbers of elements in a tensor, which never leaves the host."""
_BRINGS = ("from_numpy", "frombuffer")
_TAKES_OVER = ("as_tensor", "asarray")
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

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """For the length of a ``with``."""
        know_functions_that_make_tensors()
        with UndoStack() as undo:
            for name, call in _READS.items():
                replace_here(undo, Tensor, name, functools.partial(self._read, call))
            replace_here(undo, Tensor, "cpu", self._cpu)
            replace_here(undo, Tensor, "to", self._to)
            replace_here(undo, Tensor, "type_as", self._type_as)
            replace_here(undo, Tensor, "new_tensor", self._new_tensor)
            for where in (torch, Tensor):
                replace_here(undo, where, "tensor_split", self._split)
            for name in _BRINGS:
                replace_here(undo, torch, name, functools.partial(self._bring, name))
            replace_here(undo, torch, "tensor", self._tensor)
            for name in _TAKES_OVER:
                replace_here(undo, torch, name, functools.partial(self._take_over, name))
            for module in (torch, torch.random):
                for name in _SEEDS:
                    replace_here(undo, module, name, functools.partial(self._seed, name))
            for name in OPTIMIZER_CHECKS:
                if hasattr(Optimizer, name):
                    undo.set(Optimizer, name, self._optimizer_check())
            yield

    def _known_to_host(self, tensor: Tensor) -> bool:
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided:
            return True
        if handles_operators(type(tensor)):
            return True  # a subclass says itself what it does
        memory = self._memories.get(tensor)
        return (memory is not None and memory.host) or self._lies_on_host(tensor) is True

    def _lies_on_host(self, tensor: Tensor) -> bool | None:
        return None if self._on_host is None else self._on_host(tensor)

    def _read(self, call: str, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self._known_to_host(tensor):
            self._refusals.sync(f"{call} of {describe(tensor)}")
        return original(tensor, *args, **kwargs)

    def _cpu(self, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._lies_on_host(tensor) is False:  # what knows that judges the copy
            return original(tensor, *args, **kwargs)
        return self._read("cpu()", original, tensor, *args, **kwargs)

    def _to(self, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._lies_on_host(tensor) is not None:
            return original(tensor, *args, **kwargs)  # what knows where it lies judges the copy
        if not self._asks_for_cpu(args, kwargs):
            asked = _device_in(args, kwargs) is not None or self._on_device(args, kwargs)
            if asked and self._is_of_host(tensor):
                self._refusals.host_data("to(device) of a number of the host")
            return original(tensor, *args, **kwargs)
        return self._read("to('cpu')", original, tensor, *args, **kwargs)

    def _type_as(self, original: Any, tensor: Tensor, other: Tensor) -> Any:
        of_host = self._is_of_host(tensor) or self._lies_on_host(tensor) is True
        if of_host and self._on_device((other,), {}):
            self._refusals.host_data("type_as(tensor) of a number of the host")
        return original(tensor, other)

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

    def _split(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        for each in (*args[1:2], kwargs.get("tensor_indices_or_sections")):
            if isinstance(each, Tensor) and not self._known_to_host(each):
                self._refusals.refuse(
                    f"tensor_split at {{where}} reads its places in {describe(each)}",
                    SPLIT_WHY,
                    "give the places as numbers of Python",
                )
        return original(*args, **kwargs)

    def _bring(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._on_host is None:
            self._refusals.host_data(f"torch.{name}")
        return original(*args, **kwargs)

    def _tensor(self, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if self._brings(data, kwargs):
            caller = sys._getframe(2).f_globals.get("__name__", "")
            if isinstance(data, (int, float)) and caller.startswith(_HIGHER_ORDER):
                # Compiled, which is how they are used, they have no such constants.
                return torch.full((), data, *args, **kwargs)
            if caller == _TRANSFORMS and _stays_on_host(kwargs):
                return torch.stack([original(each, *args, **kwargs) for each in data])
        return self._take_over("tensor", original, data, *args, **kwargs)

    def _take_over(self, name: str, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if self._brings(data, kwargs):
            self._refusals.host_data(f"torch.{name}")
        return original(data, *args, **kwargs)

    def _new_tensor(
        self, original: Any, tensor: Tensor, data: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._lies_on_host(tensor) is not True and not isinstance(data, Tensor):
            self._refusals.host_data("new_tensor")
        return original(tensor, data, *args, **kwargs)

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

    def _seed(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
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

    def _optimizer_check(self) -> Any:
        """Refuse steps as torch does in a CUDA graph; without a GPU it does not ask."""
        owner = threading.get_ident()

        def check(optimizer: Any) -> None:
            capturable = all(group.get("capturable", True) for group in optimizer.param_groups)
            if not capturable and threading.get_ident() == owner:
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
