"""Lists the steps of a function while it runs: each operator and Triton launch, with its line.

Everything happens as it would have happened. What else is looked at around each step is the matter
of a :class:`StepHook`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.cuda.memory import Storages
from pytest_cudafork.capture.interface.backend import Work
from pytest_cudafork.capture.interface.lines import is_foreign, line_in_thread, line_of
from pytest_cudafork.capture.operators.higher_order import seen_inside
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import Traits, tensors_in, traits_of
from pytest_cudafork.compat.torch_graphs.modes import ObservingMode, handles_operators
from pytest_cudafork.compat.torch_graphs.operators import OpOverload
from pytest_cudafork.observe.base.undo import UndoStack

# Where Triton and Inductor time candidates.
_TUNERS = ("triton/testing.py", "torch/_inductor/runtime/benchmarking.py")
_NO_CONTENTS = (Kind.EMPTY, Kind.LIFT, Kind.RESIZE)  # they launch nothing


class Step(NamedTuple):
    """One operator or Triton launch that ran."""

    name: str
    where: str  # file:line of user code; "" if the stack holds none
    launches: bool  # it works on the contents of CUDA tensors
    tuning: bool = False  # an autotuner runs a candidate
    exact: bool = True  # what it reads and what it writes is known


class StepHook:
    """What is looked at around each step. This one looks at nothing."""

    def before(self, index: int, step: Step) -> None:
        """Look before step ``index`` runs."""

    def after(self, index: int, step: Step) -> None:
        """Look after it has run, also where it raised."""


class Signature(NamedTuple):
    """What an operator does with its arguments and results."""

    traits: Traits
    writes: bool  # contents of arguments
    reads: bool  # the contents of what it does not write
    fills: bool  # its new tensors have contents
    view: bool  # it returns no new memory


@functools.lru_cache(maxsize=4096)
def signature_of(func: Any) -> Signature:
    """Read what is known of an operator."""
    traits = traits_of(func)
    allocates = traits.kind in _NO_CONTENTS
    # lift_fresh returns what it is given.
    view = traits.kind is Kind.VIEW or traits.name == "aten::lift_fresh"
    reads = not (view or allocates or traits.shape_only)
    return Signature(traits, not (allocates or view), reads, not allocates, view)


class StepRecorder(ObservingMode):
    """Watches what the thread that enters it does, and what autograd does on its behalf."""

    def __init__(self, hook: StepHook | None = None) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.storages = Storages()
        self.raised = -1  # index of the last step that raised
        self._hook = hook or StepHook()
        self._thread = threading.get_ident()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(map(handles_operators, types)):
            return NotImplemented  # a tensor of its own kind says what it consists of
        if not isinstance(func, OpOverload):
            return self._higher_order(func, args, kwargs)
        signature = signature_of(func)
        inputs = list(signature.traits.tensors(args, kwargs))
        launches = signature.reads and any(each.is_cuda and each.numel() for each, _ in inputs)
        with self._watched(str(func), launches) as index:
            result = func(*args, **kwargs)
        where = self.steps[index].where
        seen = set()
        for tensor, written in inputs:
            seen.add(id(tensor))
            writes = written is not None and signature.writes
            if writes or signature.reads:
                reads = written is None or written.reads or not signature.writes
                self.storages.note(tensor, index, where, reads=reads, writes=writes)
        if signature.view:
            return result
        for tensor in tensors_in(result):
            if id(tensor) not in seen:
                self.storages.note(tensor, index, where, writes=signature.fills, made=True)
        if signature.fills and not launches and any(t.is_cuda for t in tensors_in(result)):
            self.steps[index] = self.steps[index]._replace(launches=True)  # full, rand, arange
        return result

    def _higher_order(self, op: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run ``torch.cond`` and its kind; what is in them are the steps, if it can be seen."""
        run = seen_inside(op, self)
        if run is not None:
            return run(*args, **kwargs)
        given = tensors_in((args, kwargs))
        with self.launched(str(op), given) as index:
            result = op(*args, **kwargs)
        for tensor in tensors_in(result):
            if all(tensor is not one for one in given):
                self.storages.note(tensor, index, self.steps[index].where, writes=True, made=True)
        return result

    def work(self, captured: Callable[[int], bool] = lambda step: True) -> tuple[Work, ...]:
        """Return the steps with the memory that they use; candidates of a tuner are left out.

        Args:
            captured: whether a step put work into a graph.

        """
        found = []
        for index, (reads, writes) in sorted(self.storages.accesses.items()):
            step = self.steps[index]
            if not step.tuning and captured(index):
                found.append(Work(step.name, step.where, tuple(reads), tuple(writes), step.exact))
        return tuple(found)

    @contextlib.contextmanager
    def launched(self, name: str, tensors: list[torch.Tensor]) -> Iterator[int]:
        """Watch a launch that does not pass torch's dispatcher."""
        with self._watched(name, launches=True) as index:
            yield index
        self.steps[index] = self.steps[index]._replace(exact=False)
        where = self.steps[index].where
        for tensor in tensors:
            self.storages.note(tensor, index, where, reads=True, writes=True)

    @contextlib.contextmanager
    def _watched(self, name: str, launches: bool) -> Iterator[int]:
        # No frame in a variable: one that refers to itself keeps all tensors of its callers.
        where, tuning = line_of(sys._getframe()), is_tuning(sys._getframe())
        if not where and threading.get_ident() != self._thread:
            where = line_in_thread(self._thread)  # backward runs in a thread of torch's
        index, step = len(self.steps), Step(name, where, launches, tuning)
        self.steps.append(step)
        self._hook.before(index, step)
        try:
            yield index
        except BaseException:
            self.raised = index
            raise
        finally:
            self._hook.after(index, step)


@contextlib.contextmanager
def triton_launches(recorder: StepRecorder) -> Iterator[None]:
    """Show a recorder the launches of Triton kernels, which do not pass torch's dispatcher."""
    jit = sys.modules.get("triton.runtime.jit")
    function = getattr(jit, "JITFunction", None)
    if function is None:
        yield
        return
    original = function.run

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):
            return original(self, *args, **kwargs)  # compiles, and launches nothing
        name = getattr(getattr(self, "fn", None), "__name__", "a Triton kernel")
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        with recorder.launched(name, tensors):
            return original(self, *args, **kwargs)

    with UndoStack() as undo:
        undo.set(function, "run", run)
        yield


def is_tuning(frame: FrameType | None) -> bool:
    """Whether a tuner runs candidates between a stack's innermost frame and the user's line."""
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if _is_tuner(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=8192)
def _is_tuner(filename: str) -> bool:
    return filename.replace("\\", "/").endswith(_TUNERS)
