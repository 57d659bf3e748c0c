"""Launches of Triton kernels, compiled or interpreted: they do not pass the dispatcher.

Which arguments a kernel changes is learned from its first launches, whose tensors are compared.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_cudafork.capture.record.arguments import SIMPLE, Arguments
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.values import Computed, Write
from pytest_cudafork.capture.software.launches import name_of, tensors_of
from pytest_cudafork.observe.base.after_import import Failed, after_import
from pytest_cudafork.observe.base.undo import UndoStack

_LEARNED_FROM = 3


class _Place(NamedTuple):
    """A method that launches kernels.

    Attributes:
        again: whether a launch can be made again, to compute the same.

    """

    module: str
    kind: str
    method: str
    again: bool = True


_PLACES = (
    _Place("triton.runtime.interpreter", "GridExecutor", "__call__"),
    _Place("triton.runtime.jit", "JITFunction", "run"),
    # Kernels made by torch.compile. A launch names its stream, which may be that of a capture.
    _Place("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run", again=False),
)


class _Learned(NamedTuple):
    """What launches of a kernel have shown so far."""

    changed: set[int | str]
    launches: list[None]


class Launches:
    """Lets a history know of launches."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._learned: dict[Any, _Learned] = {}

    @contextlib.contextmanager
    def noted(self, failed: Failed | None = None) -> Iterator[None]:
        """Note launches, for the length of a ``with``.

        ``failed`` hears of a place that cannot be hooked; None: it is a warning.
        """
        with contextlib.ExitStack() as stack:
            for place in _PLACES:
                stack.callback(after_import(place.module, self._note_at(place, stack), failed))
            yield

    def _note_at(self, place: _Place, stack: contextlib.ExitStack) -> Callable[[Any], None]:
        def imported(module: Any) -> None:
            owner = getattr(module, place.kind, None)
            if owner is not None:
                undo = stack.enter_context(UndoStack())
                undo.set(owner, place.method, self._hook(getattr(owner, place.method), place.again))

        return imported

    def _hook(self, original: Any, again: bool) -> Any:
        launches = self

        @functools.wraps(original)
        def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if launches._history.paused or kwargs.get("warmup"):
                return original(kernel, *args, **kwargs)
            return launches._launch(original, again, kernel, args, kwargs)

        return launch

    def _launch(
        self, original: Any, again: bool, kernel: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        history, key = self._history, _function_of(kernel)
        direct = [(at, each) for at, each in _named(args, kwargs) if isinstance(each, Tensor)]
        learned = self._learned.setdefault(key, _Learned(set(), []))
        begins = history.uses is None and len(learned.launches) < _LEARNED_FROM
        learns = begins and not _in_a_capture(direct)
        kernel = copy.copy(kernel) if hasattr(kernel, "grid") else kernel  # the grid is set anew
        with history.pause():
            before = [(at, each, each.clone()) for at, each in direct] if learns else []
            result = original(kernel, *args, **kwargs)
            learned.changed.update(at for at, now, then in before if not _same(now, then))
        if learns:
            learned.launches.append(None)
        run = functools.partial(original, kernel) if again else None
        seen = kwargs if again else {}  # the stream, which says nothing of what is computed
        self._note(run, kernel, args, seen, learned)
        return result

    def _note(
        self, run: Any, kernel: Any, args: Any, kwargs: dict[str, Any], learned: _Learned
    ) -> None:
        history, named = self._history, _named(args, kwargs)
        direct = [each for _, each in named if isinstance(each, Tensor)]
        hidden = _within([each for _, each in named], direct)
        for each in (*direct, *hidden):
            memory = history.meet(each)
            if memory is not None and not memory.writes:
                memory.filled = -1  # a kernel may fill it, and nobody would see
        taken = Arguments(history)
        tree = {at: self._taken(taken, at in learned.changed, each) for at, each in named}
        taken.args = [tree[index] for index in range(len(args))]
        taken.kwargs = {name: tree[name] for name in kwargs}
        operation = history.operation(run or kernel, taken, heavy=False)
        operation.launch = True
        known = learned.launches and not hidden and taken.followed
        operation.computed = Computed.YES if known and run is not None else Computed.UNKNOWN
        history.settle(operation)
        if history.uses is not None:
            history.uses.did(name_of(kernel), operation.where)
            if not known:
                history.uses.not_seen = f"it launches {name_of(kernel)}, which had not run before"
        for index, (memory, part, reads) in enumerate(taken.targets):
            history.written(memory, Write(operation, ~index, part), reads=reads)
        for each in hidden:
            history.changed(each, operation.where)

    def _taken(self, taken: Arguments, changed: bool, value: Any) -> Any:
        made = taken.take(value, None)
        if not changed or not taken.reads or not isinstance(value, Tensor):
            return made
        read = taken.reads[-1] = taken.reads[-1]._replace(written=True)
        taken.targets.append((read.memory, read.part, True))
        return read


def _function_of(kernel: Any) -> Any:
    """The Python function that a kernel was made from; not all kernels can be hashed."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _named(args: Any, kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    return [*enumerate(args), *kwargs.items()]


def _within(arguments: list[Any], direct: list[Tensor]) -> list[Tensor]:
    """Return the tensors that arguments hold without being ones, as Triton's descriptors do."""
    holders = [e for e in arguments if e.__class__ not in SIMPLE and not isinstance(e, Tensor)]
    found = tensors_of(holders) if holders else ()
    return [each for each in found if not any(each is other for other in direct)]


def _in_a_capture(named: list[tuple[int | str, Any]]) -> bool:
    """Whether a launch on these tensors goes into a graph, one of another thread perhaps.

    To compare what it has changed would make the host wait, which ends the capture.
    """
    on_gpu = any(each.is_cuda for _, each in named)
    return on_gpu and bool(torch.cuda.is_current_stream_capturing())


def _same(now: Tensor, then: Tensor) -> bool:
    return bool(torch.equal(torch.nan_to_num(now), torch.nan_to_num(then)))
