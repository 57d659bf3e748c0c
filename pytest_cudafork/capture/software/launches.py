"""Launches of interpreted Triton kernels: each is recorded as one node.

The hooks and the grid of a launch are host code: they run when it is recorded and never again.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch import Tensor

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.meanwhile import attribute_set
from pytest_cudafork.capture.operators.refusal_words import Refusals
from pytest_cudafork.capture.software.capture_mode import CaptureMode
from pytest_cudafork.capture.software.mode import EagerMode, Recorder, RecordingMode
from pytest_cudafork.capture.software.own_thread import replace_here
from pytest_cudafork.capture.software.tape import resolve
from pytest_cudafork.compat.triton_internals import TUNE, autotuner
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_INTERPRETER = "triton.runtime.interpreter"

Launch = Callable[..., None]  # what the interpreter does for one launch


@contextlib.contextmanager
def captured(mode: CaptureMode) -> Iterator[None]:
    """Record launches instead of running them, in this thread."""
    interpreter = sys.modules.get(_INTERPRETER)
    if interpreter is None:
        yield
        if _INTERPRETER in sys.modules:
            mode.refusals.refuse(
                "a Triton kernel was defined within the capture, so its launches ran at once",
                "the first kernel of a process loads Triton's interpreter",
                "import the module that defines the kernel before the capture",
                check="capture-failed",
            )
        return

    def record(original: Launch, plain: Any, node: int, args: Any, kwargs: dict[str, Any]) -> None:
        plain.grid = _grid(mode, original, plain, args, kwargs)
        places, named = mode.places(args), mode.places(kwargs)
        mode.tape.add(lambda: original(plain, *resolve(places), **resolve(named)), node)

    with _launches(interpreter.GridExecutor, mode, record), _tuning_refused(mode.refusals):
        yield


@contextlib.contextmanager
def noted(mode: EagerMode) -> Iterator[None]:
    """Run launches, and note each as one node."""
    interpreter = sys.modules.get(_INTERPRETER)
    if interpreter is None:
        yield
        return

    def run(original: Launch, plain: Any, node: int, args: Any, kwargs: dict[str, Any]) -> None:
        del node
        with attribute_set(mode, "paused", True):
            original(plain, *args, **kwargs)

    with _launches(interpreter.GridExecutor, mode, run):
        yield


@contextlib.contextmanager
def _launches(
    executor: Any,
    mode: RecordingMode,
    act: Callable[[Launch, Any, int, Any, dict[str, Any]], None],
) -> Iterator[None]:
    """Note each launch of this thread as one node, and act on it instead of running it.

    The executor that ``act`` gets has no hooks any more: they have been run.
    """

    def launch(original: Launch, self: Any, *args: Any, **kwargs: Any) -> None:
        if mode.paused:
            original(self, *args, **kwargs)
            return
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        plain = copy.copy(self)
        plain.pre_run_hooks = []
        node = mode.recorder.node("triton", name_of(self))
        _note(mode.recorder, args, kwargs, node)
        act(original, plain, node, args, kwargs)

    with UndoStack() as undo:
        replace_here(undo, executor, "__call__", launch)
        yield


def _grid(
    mode: RecordingMode, original: Callable[..., Any], executor: Any, args: Any, kwargs: Any
) -> tuple[int, ...]:
    """The grid of a launch as numbers; a grid that is a function is asked now."""
    if not callable(executor.grid):
        return tuple(executor.grid)
    asked: list[tuple[int, ...]] = []
    user_grid = executor.grid

    def ask(arguments: Any) -> tuple[int, ...]:
        with attribute_set(mode, "paused", False):
            asked.append(tuple(user_grid(arguments)))
        return (0, 1, 1)  # no program runs

    executor.grid = ask
    with attribute_set(mode, "paused", True):
        original(executor, *args, **kwargs)
    return asked[0]


@contextlib.contextmanager
def _tuning_refused(refusals: Refusals) -> Iterator[None]:
    tuner = autotuner()
    if tuner is None:
        yield
        return

    def bench(original: Any, self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refusals.refuse(
            f"the Triton kernel {name_of(self)} at {{where}} is tuned within the capture",
            "tuning runs the kernel several times and waits for it, which CUDA refuses while a "
            "stream is capturing",
            "launch it once with these sizes before the capture (a warm-up)",
        )

    with UndoStack() as undo:
        replace_here(undo, tuner, TUNE, bench)
        yield


def name_of(kernel: Any) -> str:
    """The name of a kernel, as its author knows it."""
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", "a kernel"))


def _note(recorder: Recorder, args: Any, kwargs: dict[str, Any], node: int) -> None:
    """What a kernel reads and writes cannot be seen: all its tensors count as both."""
    for each in tensors_of((args, kwargs)):
        memory = recorder.memories.of(each)
        memory.filled = True
        recorder.use(memory, node, reads=True, writes=True, tensor=each)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors in the arguments of a launch, descriptors and wrappers included."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from tensors_of(each)
    elif isinstance(tree, dict):
        yield from tensors_of(list(tree.values()))
    elif isinstance(getattr(tree, "base", None), Tensor):
        yield tree.base
