"""The dispatch mode that sees operators: one lies below all of a test, one above each capture.

The mode of a capture swallows operators, so what the graph holds is seen by a second mode on top.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.host_work import SeesHostWork
from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.numbers import RESHAPED
from pytest_cudafork.capture.record.operators import KnownOperator
from pytest_cudafork.capture.record.optimizers import reads_for_step
from pytest_cudafork.compat.torch_graphs.modes import ObservingMode, handles_operators, passed_on
from pytest_cudafork.compat.torch_graphs.operators import CPU_KEYS, CUDA_KEYS, below_autograd

__tracebackhide__ = of_refusals


_PINS = ("pin_memory", "_pin_memory")


class HistoryMode(ObservingMode, SeesHostWork):
    """Lets a history know of the operators of this thread; with ``capture`` of those within it."""

    def __init__(self, history: History, capture: SeenCapture | None = None) -> None:
        super().__init__()
        self._history = history
        self._of_capture = capture is not None
        self._on_gpu = capture is not None and capture.backend == "cuda"
        self._passed_on = passed_on()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator, and note it."""
        kwargs = kwargs or {}
        history = self._history
        if history.paused or (history.uses is not None and not self._of_capture):
            return op(*args, **kwargs)
        for each in types:
            if handles_operators(each):
                passes = issubclass(each, self._passed_on)
                return op(*args, **kwargs) if passes else NotImplemented
        known = history.operators(op)
        if known is None:
            if history.uses is not None:
                history.uses.not_seen = f"it holds {op}, an operator made of functions"
            return op(*args, **kwargs)
        if self._of_capture and self._is_of_host(known, args, kwargs):
            with history.outside_of_capture():
                return self._see(known, args, kwargs)
        return self._see(known, args, kwargs)

    def _is_of_host(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the host works here, on its own; what is pinned belongs to the graph."""
        if self.host_works or not self._on_gpu:
            return self.host_works
        device = kwargs.get("device")
        if (device is not None and device.type != "cpu") or kwargs.get("pin_memory"):
            return False
        return known.name not in _PINS and all(e.is_cpu for e in tensors_in((args, kwargs)))

    def _see(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        history = self._history
        if history.spoiled and known.kind is not Kind.VIEW:
            history.tell_of_spoiled(known, args, kwargs)
        if known.foreign and known.traits.in_python:
            return self._open(known.op, args, kwargs)
        if known.kind is Kind.VIEW:
            return self._view(known, args, kwargs)
        uncomputed = history.uncomputed
        if uncomputed.waits and history.uses is None:
            run = functools.partial(self._note, known, args, kwargs)
            return uncomputed.follow(known, args, kwargs, run, history.line)
        return self._note(known, args, kwargs)

    def _note(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        history = self._history
        if known.kind is Kind.SYNC:
            result = known.op(*args, **kwargs)
            reads_number = known.name == "_local_scalar_dense" and history.uses is None
            if reads_number and not reads_for_step(sys._getframe(1)):
                history.number_read(args[0], result)
            return result
        return history.work(known, args, kwargs)

    def _open(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the Python kernel of a custom operator; its operators are seen one by one."""
        on_gpu = any(each.is_cuda for each in tensors_in((args, kwargs)))
        with below_autograd(), self:
            return op.redispatch(CUDA_KEYS if on_gpu else CPU_KEYS, *args, **kwargs)

    def _view(self, known: KnownOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        history, uses = self._history, self._history.uses
        if uses is None and known.traits.composite:
            # reshape and its like may copy; they come as a whole in inference mode
            return history.work(known, args, kwargs)
        result = known.op(*args, **kwargs)
        if known.numbered:
            history.note_numbers(known, args, result)
        if uses is not None:
            if known.name not in RESHAPED:
                uses.took(args)
            source = args[0] if args else None
            if isinstance(source, Tensor):
                memory = history.memories.of(source)
                if memory is not None and memory.owner is not uses:
                    uses.name(memory, source, history.line)
            if known.traits.composite and isinstance(result, Tensor):
                history.copied(known, args, kwargs, result)
        return result
