"""Graph trees of ``torch.compile(mode="reduce-overhead")``: where the inputs of their graphs lie.

A tree lets go of the memory of inputs once their graph is captured. Before each replay it copies
new values to the same addresses, through tensors that own nothing; of inputs that it does not copy
(parameters, results of the graph before) it compares the address of what it is given with that of
the capture, and captures anew if it is another one. That the memory of an input was freed is no
error there. What a graph reads that is no input of its tree, the tree knows nothing of.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from pytest_cudafork.capture.interface.seen import inputs_renewed_at
from pytest_cudafork.compat.torch_graphs import GRAPH_TREES, RECORDS_A_GRAPH
from pytest_cudafork.observe.base.after_import import Failed, after_import
from pytest_cudafork.observe.base.undo import UndoStack


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
