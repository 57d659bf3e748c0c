"""When what eager code and a replay computed differs, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import (  # noqa: E402
    ReplayDiffersError,
    assert_replay_equals_eager,
)
from pytest_cudafork.capture.state.compare import (  # noqa: E402
    Tolerance,
    difference,
    differences,
    short,
)
from pytest_cudafork.errors import GraphUsageError  # noqa: E402


def check(fn: Any, inputs: Any = (), **options: Any) -> Any:
    return assert_replay_equals_eager(fn, inputs, backend="software", **options)


def findings(run: Callable[[], Any]) -> dict[str, str]:
    """Return what was said, by check and path."""
    with pytest.raises(ReplayDiffersError) as caught:
        run()
    assert caught.value.findings
    return {f"{one.check} {one.path}".strip(): one.what for one in caught.value.findings}


def test_the_tolerance_is_that_of_the_type_or_the_users() -> None:
    x = torch.ones(4)

    def eager(x: Any) -> Any:
        return x * (2 + 1e-5)

    check(lambda x: x * 2, [x], eager=eager)
    findings(lambda: check(lambda x: x * 2, [x], eager=eager, rtol=0, atol=0))
    findings(lambda: check(lambda x: x * 2, [x], eager=lambda x: x * 2.1))
    check(lambda x: x * 2, [x], eager=lambda x: x * 2.1, rtol=0.1)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("inf")]), torch.tensor([float("inf")]), True),
        (torch.tensor([True]), torch.tensor([False]), False),
        (torch.tensor([1], dtype=torch.int8), torch.tensor([1], dtype=torch.int8), True),
        (torch.ones(2), torch.ones(3), False),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), True),
        (torch.ones(0), torch.ones(0), True),
        (torch.tensor(1 + 2j), torch.tensor(1 + 3j), False),
    ],
)
def test_bits_are_compared(a: Any, b: Any, same: bool) -> None:
    assert (difference("x", a, b, Tolerance(0, 0)) is None) is same


def test_the_greatest_difference_is_told() -> None:
    a = torch.zeros(2, 3)
    b = a.clone()
    b[1, 2], b[0, 1] = 4.0, 0.5
    found = difference("x", a, b, Tolerance())
    assert found is not None
    assert "2 of 6 elements differ" in found.what
    assert "4 at [1, 2]: eager 0, replay 4" in found.what


def test_values_of_python_are_compared_as_numbers_and_by_equality() -> None:
    for a, b, same in [
        (1.0, 1.0 + 1e-9, True),
        (1.0, 1.1, False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        ("a", "a", True),
        (1, 2, False),
        (torch.ones(1), 1, False),
    ]:
        found = difference("x", a, b, Tolerance())
        assert (found is None) is same, (a, b)
        assert found is None or (found.host and "x is a value of Python: eager gives" in found.what)


def test_an_output_that_the_graph_lacks_is_told() -> None:
    eager = {"a": torch.ones(2), "b": 3, "c": 1}
    replay = {"a": torch.zeros(2), "c": 1}
    found = differences(eager, replay, Tolerance())
    assert [one.path for one in found] == ["a", "b"]
    assert found[1].what == "b: eager returns 3, the graph has no such output"


def test_only_the_live_rows_are_compared_and_those_that_differ_are_told() -> None:
    a, b = torch.zeros(4, 2), torch.zeros(4, 2)
    b[1, 0], b[2, 1], b[3] = 1.0, float("nan"), 9.0
    assert difference("x", a, b, Tolerance(), rows=1) is None
    found = difference("x", a, b, Tolerance(), rows=3)
    assert found is not None
    assert found.only_nan is False
    found = difference("x", torch.tensor(1.0), torch.tensor(float("nan")), Tolerance(), rows=3)
    assert found is not None
    assert found.only_nan is True


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex32, torch.complex128])
def test_types_that_torch_cannot_compare_are_widened(dtype: Any) -> None:
    one = torch.ones(2).to(dtype)
    assert difference("x", one, one.clone(), Tolerance()) is None
    assert difference("x", one, torch.zeros(2).to(dtype), Tolerance()) is not None


def test_sparse_tensors_are_compared_by_value_and_those_of_meta_not_at_all() -> None:
    a = torch.eye(3)
    assert difference("x", a.to_sparse(), a.to_sparse(), Tolerance()) is None
    assert difference("x", a.to_sparse(), (a * 2).to_sparse(), Tolerance()) is not None
    with pytest.raises(GraphUsageError, match="x lies on the device meta"):
        difference("x", a.to("meta"), a.to("meta"), Tolerance())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_not_compared() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for one, other in ((nested, nested), (nested, torch.ones(2)), (torch.ones(2), nested)):
        with pytest.raises(GraphUsageError, match=r"output is a nested tensor.*unbind"):
            difference("output", one, other, Tolerance())


def test_any_value_is_written_in_one_short_line() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    assert short(Broken()) == "<Broken, whose repr raises ValueError>"
    assert short("a\nb") == "'a\\nb'"
    assert len(short("x" * 100)) == 60
    assert short(torch.tensor([1, 2])) == "int64[2] [1, 2]"
    assert short(torch.ones(7)) == "float32[7]"
    assert len(short(torch.ones((1,) * 60))) == 120
