"""Code that goes past operators does by operators what it does."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.software.past_operators import (  # noqa: E402
    UnderWay,
    by_operators,
    not_compiled,
)


@pytest.mark.parametrize("kind", ["eager", "aot_eager"])
@pytest.mark.parametrize("warm", [False, True])
def test_compiled_functions_are_recorded_as_the_code_they_were_made_from(
    kind: str, warm: bool
) -> None:
    x = torch.randn(4)
    compiled = torch.compile(lambda x: (x * 2 + 1).relu(), backend=kind)
    if warm:
        compiled(x)
    backend = SoftwareBackend()
    graph = backend.capture(lambda: compiled(x) + 1)
    names = ["aten::mul", "aten::add", "aten::relu", "aten::add"]
    assert [node.name for node in graph.recording.nodes or ()] == names
    eager = backend.record(lambda: compiled(x) + 1)
    assert [node.name for node in eager.nodes or ()] == names
    x.copy_(torch.randn(4))
    graph.replay()
    assert torch.equal(graph.recording.result, (x * 2 + 1).relu() + 1)
    assert torch.allclose(compiled(x), (x * 2 + 1).relu())


def names(fn: Any) -> list[str]:
    """The operators of a capture."""
    nodes = SoftwareBackend().capture(fn).recording.nodes
    assert nodes is not None
    return [node.name for node in nodes]


def test_one_hot_is_made_by_operators() -> None:
    x = torch.tensor([0, 2])
    functional = torch.nn.functional
    assert "aten::scatter_" in names(lambda: functional.one_hot(x, 3))
    with by_operators():
        assert functional.one_hot(x, 3).tolist() == [[1, 0, 0], [0, 0, 1]]
        assert functional.one_hot(x).shape == (2, 3), "it looks for the number of classes"


def test_a_copy_of_a_tensor_is_made_by_operators() -> None:
    x, weight = torch.ones(2), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert names(lambda: copy.deepcopy(x)) == ["aten::clone"]
    with by_operators():
        one, same, other = copy.deepcopy([x, x, weight])
        assert one is same
        assert type(other) is torch.nn.Parameter
        assert not other.requires_grad
        assert copy.deepcopy(x.to_sparse()).layout == torch.sparse_coo


def test_a_number_that_is_assigned_is_told_from_a_tensor() -> None:
    x, seen = torch.zeros(2), []
    under_way = UnderWay()

    class Key:
        """A key that is asked for its index within the assignment."""

        def __index__(self) -> int:
            seen.append(under_way.assigns_number)
            return 0

    with under_way.watched():
        x[Key()] = 1
        x[Key()] = torch.ones(())
    assert seen[0] is True
    assert seen[-1] is False
    assert not under_way.assigns_number


def test_other_threads_are_left_alone() -> None:
    x, results = torch.tensor([0, 2]), list[Any]()
    under_way = UnderWay()

    def work() -> None:
        y = torch.zeros(2)
        y[0] = 1
        results.extend([torch.nn.functional.one_hot(x, 3), copy.deepcopy(y)])
        results.append(under_way.assigns_number)

    with by_operators(), not_compiled(), under_way.watched():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert results[0].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert results[1].tolist() == [1, 0]
    assert results[2] is False


def test_functions_of_torch_that_compile_get_their_function_back() -> None:
    def fn(x: Any) -> Any:
        return x

    with not_compiled():
        caller = eval("lambda f: torch.compile(f)", {"torch": torch, "__name__": "torch.nn"})
        assert caller(fn) is fn
        assert torch.compile(fn, backend="eager") is not fn
