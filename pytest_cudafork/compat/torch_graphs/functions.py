"""Functions and tables of torch that are watched or replaced while a graph is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

MARKS = "_nvtx"
"""In ``torch.cuda.nvtx``: what its functions call; a build without CUDA has one that raises."""


class NoMarks:
    """Stands for it: marks and ranges that no profiler sees."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: 0


def raises_for_marks(module: Any) -> bool:
    """Whether marks cannot be made, as in a build without CUDA."""
    return getattr(getattr(module, MARKS, None), "_fail", None) is not None


TRACERS = ("trace", "trace_module", "_get_trace_graph")
"""Functions of ``torch.jit`` that run code to trace it; the last is what ``torch.onnx`` calls."""

BACKWARD = torch.autograd, "_engine_run_backward"
"""What ``torch.autograd.backward`` and ``grad`` call to run a backward pass: ``(roots, ...)``."""

GROUPING = torch._C, "_group_tensors_by_device_and_dtype"
"""By this, optimizers and the clipping of gradients sort tensors by place: no mode sees it."""

OPTIMIZER_CHECKS = (
    "_accelerator_graph_capture_health_check",
    "_cuda_graph_capture_health_check",
)
"""Methods by which an optimizer refuses to be captured; 2.9 and later have both, earlier one."""


def profiler_mark(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a mark for torch's profiler that does not pass the dispatcher, so no mode sees it."""
    mark: contextlib.AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(name)
    return mark


BETWEEN_GPUS: Any = torch._C
"""Has ``_scatter`` and the like, which ``torch.nn.parallel.comm`` calls."""

COPY_STREAMS = torch.nn.parallel._functions, "_streams"
"""The streams by which ``DataParallel`` copies a batch, for each GPU; None: there are none yet."""

COMPILER = "torch._dynamo"
"""The package that compiles, imported by the first call of a compiled function."""


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Let compiled functions run as they are written; ``torch.compiler.set_stance`` since 2.6."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    with set_stance("force_eager") if set_stance is not None else contextlib.nullcontext():
        yield


GRAPH_TREES = "torch._inductor.cudagraph_trees"
"""The module that has the graph trees of torch.compile, which imports it when it needs it."""

RECORDS_A_GRAPH = "CUDAGraphNode", "_record"
"""Its class of one graph of a tree, and the method that captures it: ``_record(model, inputs)``."""
