"""Hooks on ``torch.cuda.CUDAGraph``: every capture of torch's own passes through its methods.

``torch.cuda.graph``, ``make_graphed_callables`` and the graph trees of torch.compile do, too. What
stands for the class on the software graph tells of its captures by itself.

Of the graph trees of ``torch.compile(mode="reduce-overhead")`` it is noted where the inputs of
their graphs lie. A tree lets go of the memory of inputs once their graph is captured. Before each
replay it copies new values to the same addresses, through tensors that own nothing; of inputs that
it does not copy (parameters, results of the graph before) it compares the address of what it is
given with that of the capture, and captures anew if it is another one. That the memory of an input
was freed is no error there. What a graph reads that is no input of its tree, the tree knows nothing
of.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from pytest_cudafork.capture.cuda.nodes import work_in_progress
from pytest_cudafork.capture.interface.seen import (
    Watch,
    inputs_renewed_at,
    replay_seen,
    reset_seen,
    watch_in_force,
)
from pytest_cudafork.compat.torch_graphs.functions import GRAPH_TREES, RECORDS_A_GRAPH
from pytest_cudafork.observe.base.after_import import Failed, Required, after_import
from pytest_cudafork.observe.base.garbage import no_collections
from pytest_cudafork.observe.base.undo import UndoStack

_STAND_INS = "pytest_cudafork.capture.stand_ins.capturing.graphs"
"""Has the class that comes into the place of torch's, before or after the hooks do."""
_LIVENESS = "check_input_liveness"
"""An argument of ``capture_begin`` since torch 2.13: a replay that reads freed memory raises."""


@contextlib.contextmanager
def hooked(elsewhere: Callable[[], None], failed: Failed | None = None) -> Iterator[None]:
    """Tell the watch in force of captures and replays of ``torch.cuda``, for a ``with``.

    ``elsewhere`` is called for a capture of a thread over which there is none, ``failed`` where
    the graph trees of torch.compile cannot be hooked.
    """
    kind = torch.cuda.graphs.CUDAGraph
    with contextlib.ExitStack() as stack:
        stack.enter_context(inputs_noted(failed))
        if kind.__module__.partition(".")[0] == "torch":  # and no stand-in of ours
            stack.enter_context(hooks_on(kind))
        if kind.__module__ != _STAND_INS:
            stack.enter_context(_other_threads(kind, elsewhere))

        def stand_ins_are_there(module: Any) -> None:
            stack.enter_context(_other_threads(module.CUDAGraph, elsewhere))

        stack.callback(after_import(_STAND_INS, Required(stand_ins_are_there)))
        yield


@contextlib.contextmanager
def _other_threads(kind: Any, elsewhere: Callable[[], None]) -> Iterator[None]:
    begin = kind.capture_begin

    @functools.wraps(begin)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        if watch_in_force() is None:
            elsewhere()
        begin(graph, *args, **kwargs)

    with UndoStack() as undo:
        undo.set(kind, "capture_begin", capture_begin)
        yield


@contextlib.contextmanager
def hooks_on(kind: Any) -> Iterator[None]:
    """Put the hooks on a class of graphs, and take them off again.

    No garbage is collected while a capture is watched. To record one makes many objects, so that
    the collector would come more often than without us, and a graph of an earlier test that it
    destroys within a capture ends that capture.
    """
    begin, end, replay, reset = (
        getattr(kind, name) for name in ("capture_begin", "capture_end", "replay", "reset")
    )
    seen_by: weakref.WeakKeyDictionary[Any, Watch] = weakref.WeakKeyDictionary()
    knows_liveness = _LIVENESS in inspect.signature(begin).parameters

    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        watch = watch_in_force()
        hears = watch is not None and watch.hears
        if knows_liveness and hears and len(args) < 3:
            kwargs[_LIVENESS] = True
        if watch is None:
            begin(graph, *args, **kwargs)
            return
        with contextlib.ExitStack() as held:
            held.enter_context(no_collections())
            begin(graph, *args, **kwargs)
            watch.begun(graph, "cuda")
            until_end.push(held.pop_all())

    def capture_end(graph: Any) -> None:
        watch = watch_in_force()
        if watch is None:
            end(graph)
            return
        watch.closing(graph, work_in_progress())
        try:
            end(graph)
        except BaseException:
            watch.failed(graph)
            raise
        finally:
            until_end.close()
        seen_by[graph] = watch
        watch.captured(graph, graph, replay, graph.pool())

    def replay_and_tell(graph: Any) -> None:
        replay_seen(graph, lambda: replay(graph), seen_by.get(graph))

    def reset_and_tell(graph: Any) -> None:
        reset_seen(graph)
        reset(graph)

    with contextlib.ExitStack() as until_end, UndoStack() as undo:
        undo.set(kind, "capture_begin", capture_begin)
        undo.set(kind, "capture_end", capture_end)
        undo.set(kind, "replay", replay_and_tell)
        undo.set(kind, "reset", reset_and_tell)
        yield


@contextlib.contextmanager
def inputs_noted(failed: Failed | None = None) -> Iterator[None]:
    """Let captures of graph trees know where their inputs lie, for the length of a ``with``.

    ``failed`` hears where they cannot be hooked; None: it is a warning.
    """
    with UndoStack() as undo:

        def trees_are_there(module: ModuleType) -> None:
            name, method = RECORDS_A_GRAPH
            kind = getattr(module, name, None)
            if hasattr(kind, method):
                undo.set(kind, method, _noting(getattr(kind, method)))

        undo.callback(after_import(GRAPH_TREES, trees_are_there, failed))
        yield


def _noting(record: Any) -> Any:
    @functools.wraps(record)
    def noted(node: Any, model: Any, inputs: Sequence[Any]) -> Any:
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        with inputs_renewed_at(each.untyped_storage().data_ptr() for each in tensors):
            del tensors  # the model takes the inputs out of their list, and nothing may hold them
            return record(node, model, inputs)

    return noted
