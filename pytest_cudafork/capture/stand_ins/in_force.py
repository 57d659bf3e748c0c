"""Putting the stand-ins in the place of torch's names, for a while.

Modules that took a name by ``from torch.cuda import ...`` get the stand-in, too, and later get back
what they had. Torch's own classes, which somebody may hold under another name, make stand-ins
meanwhile; its functions under another name stay what they are.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from pytest_cudafork.capture.stand_ins.capturing import graphs, random_numbers, streams
from pytest_cudafork.capture.stand_ins.tensors import addresses, several_gpus, typed_tensors
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors
from pytest_cudafork.compat.torch_graphs.functions import MARKS, NoMarks, raises_for_marks
from pytest_cudafork.errors import CudaForkWarning, GraphNotJudgedError
from pytest_cudafork.observe.base.after_import import Failed
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.present import is_shown

_OF_CUDA: dict[str, Any] = {
    "CUDAGraph": graphs.CUDAGraph,
    "graph": graphs.graph,
    "graph_pool_handle": graphs.graph_pool_handle,
    "is_current_stream_capturing": graphs.is_current_stream_capturing,
    "MemPool": graphs.MemPool,
    "use_mem_pool": graphs.use_mem_pool,
    "Stream": streams.Stream,
    "ExternalStream": streams.ExternalStream,
    "Event": streams.Event,
    "stream": streams.stream,
    "StreamContext": streams.stream,
    "current_stream": streams.current_stream,
    "default_stream": streams.default_stream,
    "set_stream": streams.set_stream,
    "synchronize": streams.synchronize,
}
"""What stands for what in ``torch.cuda``. ``make_graphed_callables`` is torch's own: it is made of
these."""
_OF_TORCH: dict[str, Any] = {"Stream": streams.AnyStream, "Event": streams.AnyEvent}
"""What stands for what in ``torch`` itself."""
_OF_ACCELERATOR: dict[str, Any] = {
    "current_stream": streams.current_stream,
    "set_stream": streams.set_stream,
    "synchronize": streams.synchronize,
    "Graph": graphs.AcceleratorGraph,
}
_MADE_BY_NEW = ("CUDAGraph", "Stream", "ExternalStream", "Event")
_LEFT_OUT = ("torch.", "pytest_cudafork.")
_HOMES = ("torch.cuda", "torch.cuda.graphs", "torch.cuda.memory", "torch.cuda.streams")


@contextlib.contextmanager
def in_force(failed: Failed | None = None) -> Iterator[None]:
    """Let ``torch.cuda`` capture software graphs, for the length of a ``with``.

    A capture that is still open at its end is ended, and is an error. ``failed`` hears of a part
    that waits for a later module and cannot be set up; None: it is a warning.

    Raises:
        RuntimeError: (at the end) a capture was begun and not ended.

    """
    if torch.cuda.CUDAGraph is graphs.CUDAGraph:  # within another one
        yield
        return
    originals = {name: vars(torch.cuda)[name] for name in _OF_CUDA if name in vars(torch.cuda)}
    with UndoStack() as undo:
        for home in _HOMES:
            for name, original in originals.items():
                if vars(sys.modules[home]).get(name) is original:
                    undo.set(sys.modules[home], name, _OF_CUDA[name])
        for name, instead in _OF_ACCELERATOR.items():
            if hasattr(torch.accelerator, name):
                undo.set(torch.accelerator, name, instead)
        ours = {name: _OF_CUDA[name] for name in originals}
        of_torch = {name: vars(torch)[name] for name in _OF_TORCH if name in vars(torch)}
        for name in of_torch:
            undo.set(torch, name, _OF_TORCH[name])
        held, held_of_torch, *by_their_own_choice = _holders(originals, of_torch, ours, _OF_TORCH)
        _give(held, ours)
        _give(held_of_torch, _OF_TORCH)
        undo.callback(
            _take_back, (ours, _OF_TORCH), (originals, of_torch), leave=by_their_own_choice
        )
        for name in _MADE_BY_NEW:
            undo.set(originals[name], "__new__", _maker(originals[name], _OF_CUDA[name]))
        _pass_on(originals["graph"], undo)
        undo.set(torch.Tensor, "record_stream", _recorder(torch.Tensor.record_stream))
        if raises_for_marks(torch.cuda.nvtx):
            undo.set(torch.cuda.nvtx, MARKS, NoMarks())
        if is_shown():
            for part in (addresses, random_numbers, several_gpus, typed_tensors):
                part.put_in_place(undo)
            undo.enter_context(CudaTensors().in_this_thread_and_new_ones(failed))
        try:
            yield
        except BaseException:
            for told in graphs.end_open_captures():
                warnings.warn(told, CudaForkWarning, stacklevel=1)
            raise
        left = graphs.end_open_captures()
        if left:
            raise RuntimeError(". ".join(left))


def _maker(original: type, stand_in: type) -> Callable[..., Any]:
    """Return a ``__new__`` for one of torch's classes that makes what stands for it."""

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is not original:
            raise GraphNotJudgedError(
                f"{cls.__qualname__} is derived from torch.cuda.{original.__name__}, for which the "
                "software graph has a stand-in: a class of your own cannot be made of it. Test "
                "this with the backend 'cuda', on a machine with a GPU"
            )
        return stand_in(*args, **kwargs)

    return make


def _pass_on(original: type, undo: UndoStack) -> None:
    """Let torch's own ``graph``, a class of Python alone, do what its stand-in does."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self.stand_in = graphs.graph(*args, **kwargs)

    undo.set(original, "__init__", init)
    undo.set(original, "__enter__", lambda self: self.stand_in.__enter__())
    undo.set(original, "__exit__", lambda self, *error: self.stand_in.__exit__(*error))


def _recorder(original: Callable[..., None]) -> Callable[..., None]:
    """Return a ``Tensor.record_stream`` that does nothing for a stand-in, whose work is done."""

    def record_stream(tensor: Any, stream: Any) -> None:
        if not isinstance(stream, streams.Stream):
            original(tensor, stream)

    return record_stream


_Names = set[tuple[str, str]]
"""Names that modules have: the key in ``sys.modules``, and the name."""


def _give(names: _Names, values: Mapping[str, Any]) -> None:
    """Set names of modules to these values."""
    for key, name in names:
        module = sys.modules.get(key)
        if module is not None:  # another thread may have taken it away
            setattr(module, name, values[name])


_Tables = tuple[Mapping[str, Any], ...]


def _take_back(ours: _Tables, originals: _Tables, leave: list[_Names]) -> None:
    """Give all that hold a stand-in by now, but those of ``leave``, the original."""
    for held, left, values in zip(_holders(*ours), leave, originals, strict=True):
        _give(held - left, values)


def _holders(*tables: Mapping[str, Any]) -> list[_Names]:
    """Return for each table who holds its values by their names, among the modules of others.

    All are looked for in one pass, and of torch's own modules, a thousand or two, no more than the
    key is looked at: each test of a graph does this twice.
    """
    found: list[_Names] = [set() for _ in tables]
    names = {name for table in tables for name in table}
    for key, module in list(sys.modules.items()):
        if key.startswith(_LEFT_OUT) or not isinstance(module, ModuleType):
            continue
        attributes = module.__dict__
        for name in names & attributes.keys():
            value = attributes.get(name)
            for held, values in zip(found, tables, strict=True):
                if name in values and value is values[name] and not _is_left_out(module):
                    held.add((key, name))
    return found


def _is_left_out(module: ModuleType) -> bool:
    """Whether it is torch's or this package's, under another key."""
    return f"{module.__name__}.".startswith(_LEFT_OUT)
