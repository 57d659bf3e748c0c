"""Inputs of graph trees: their memory is freed after the capture, and filled before each replay."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.seen.graph_trees import inputs_noted  # noqa: E402
from pytest_cudafork.capture.stand_ins import graphs  # noqa: E402
from pytest_cudafork.compat.torch_graphs import GRAPH_TREES, RECORDS_A_GRAPH  # noqa: E402
from tests.support.captures import looking  # noqa: E402


class Node:
    """One graph of a tree, which lets go of its inputs as torch's does."""

    def __init__(self) -> None:
        self.graph = graphs.CUDAGraph()

    def _record(self, model: Any, inputs: list[Any]) -> Any:
        with graphs.graph(self.graph):
            return model(inputs)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a module with this class in the place of torch's."""
    module = ModuleType(GRAPH_TREES)
    setattr(module, RECORDS_A_GRAPH[0], type("CUDAGraphNode", (Node,), dict(vars(Node))))
    monkeypatch.setitem(sys.modules, GRAPH_TREES, module)
    return module


def recorded(module: Any, aside: Any = None) -> Any:
    node = module.CUDAGraphNode()

    def model(inputs: list[Any]) -> Any:
        (x,) = inputs
        inputs.clear()
        return x + 1 if aside is None else x + aside

    inputs = [torch.empty(3).fill_(1)]
    node.kept = node._record(model, inputs)
    assert inputs == []
    return node


def test_an_input_of_a_tree_may_be_freed(trees: ModuleType) -> None:
    with looking() as look:
        node = recorded(trees)
        with pytest.raises(RuntimeError, match="freed"):  # the software graph knows of no address
            node.graph.replay()
        assert look.kinds() == []


def test_what_is_no_input_of_the_tree_may_not_be_freed(trees: ModuleType) -> None:
    with looking() as look:
        held = [torch.ones(3)]
        node = recorded(trees, held[0])
        held.clear()
        with pytest.raises(RuntimeError, match="freed"):
            node.graph.replay()
        assert look.kinds() == ["freed-memory"]


def test_what_is_captured_beside_a_tree_may_not_be_freed_either(trees: ModuleType) -> None:
    with looking() as look:
        recorded(trees)
        held = [torch.ones(3)]
        captured = look.capture(lambda: held[0] + 1)
        assert captured.seen.renewed == frozenset()
        held.clear()
        with pytest.raises(RuntimeError, match="freed"):
            captured.replay()
        assert look.kinds() == ["freed-memory"]


def test_the_class_is_as_before_afterwards(trees: ModuleType) -> None:
    kind = getattr(trees, RECORDS_A_GRAPH[0])
    before = dict(vars(kind))
    with inputs_noted():
        assert dict(vars(kind)) != before
    assert dict(vars(kind)) == before


@pytest.mark.slow
def test_the_class_of_torch_is_as_expected() -> None:
    module = pytest.importorskip(GRAPH_TREES)
    record = getattr(getattr(module, RECORDS_A_GRAPH[0]), RECORDS_A_GRAPH[1])
    assert list(inspect.signature(record).parameters) == ["self", "model", "inputs"]
