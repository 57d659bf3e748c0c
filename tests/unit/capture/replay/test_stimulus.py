"""What is done to inputs and outputs before a replay."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import GraphUsageError  # noqa: E402
from pytest_cudafork.capture.replay.stimulus import (  # noqa: E402
    Poison,
    check_callables,
    check_rows,
    name_of,
    other_float_inputs,
    other_floats,
    rows_of,
    takes_argument,
)


def test_a_change_is_called_by_its_name_or_line() -> None:
    def shrink() -> None: ...

    assert name_of(shrink, "vary[0]") == "vary[0] (shrink)"
    assert name_of(lambda: None, "vary[1]").startswith("vary[1] (")
    assert "test_stimulus.py:" in name_of(lambda: None, "vary[1]")
    assert name_of(object(), "vary[2]") == "vary[2]"


def test_live_rows() -> None:
    assert rows_of(None, "vary[0]") is None
    assert rows_of(torch.ones(1), "vary[0]") is None
    assert rows_of(3, "vary[0]") == 3
    for wrong in (True, 2.0, "3", -1):
        with pytest.raises(GraphUsageError, match="number of live rows"):
            rows_of(wrong, "vary[0]")


def test_live_rows_have_to_be_there() -> None:
    outputs = {"output": torch.ones(4, 2), "number": 3}
    check_rows(4, outputs, False, "vary[0]")
    with pytest.raises(GraphUsageError, match="the outputs have 4"):
        check_rows(5, outputs, False, "vary[0]")
    with pytest.raises(GraphUsageError, match="nothing is compared"):
        check_rows(0, outputs, False, "vary[0]")
    check_rows(0, outputs, True, "vary[0]")


def test_a_list_of_callables_is_needed() -> None:
    check_callables([int], "vary")
    with pytest.raises(GraphUsageError, match=r"write \[vary_fn\]"):
        check_callables(int, "vary")  # type: ignore[arg-type]
    with pytest.raises(GraphUsageError, match=r"vary\[0\] is 3"):
        check_callables([3], "vary")


def test_a_change_that_takes_the_state() -> None:
    assert takes_argument(lambda state: None)
    assert not takes_argument(lambda state=None: None)
    assert not takes_argument(dict)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.complex64, torch.float8_e5m2]
)
def test_floats_get_other_values_of_the_same_range(dtype: Any) -> None:
    x = torch.tensor([1.0, 2.0, 3.0]).to(dtype)
    assert other_floats({"x": x})
    assert x.to(torch.complex64).real.tolist() == [3, 1, 2]


def test_equal_floats_and_single_ones_change_too_and_whole_numbers_stay() -> None:
    equal, single, lengths = torch.ones(3), torch.ones(1), torch.tensor([1, 2])
    assert other_floats({"a": equal, "again": equal, "b": single, "c": lengths})
    assert (equal[0].item(), single.item(), lengths.tolist()) == (0.75, 0.5, [1, 2])
    assert not other_floats({"c": lengths, "empty": torch.ones(0)})


def test_the_stimulus_of_other_floats_looks_at_the_inputs_of_now() -> None:
    inputs: dict[str, Any] = {}
    stimulus = other_float_inputs(lambda: inputs)
    inputs["x"] = torch.ones(1)
    assert stimulus.apply() is None
    assert (inputs["x"].item(), stimulus.kind) == (0.5, "floats")


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_that_a_replay_writes_is_no_poison(dtype: Any) -> None:
    outputs = {"output": torch.zeros(4).to(dtype)}
    poison = Poison(outputs)
    assert outputs["output"].isnan().all(), "whoever reads the poison gets NaN"
    zero = torch.zeros(()).to(dtype)
    outputs["output"][0] = zero / zero
    outputs["output"][1] = float("nan")
    assert poison.left(outputs)["output"].tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.int64, torch.bool, torch.complex128, torch.float8_e5m2]
)
def test_poison_that_is_still_there_is_seen(dtype: Any) -> None:
    outputs = {"output": torch.zeros(3).to(dtype), "number": 3, "empty": torch.ones(0)}
    poison = Poison(outputs)
    outputs["output"][0] = torch.zeros(()).to(dtype)
    assert poison.left(outputs)["output"].tolist() == [False, True, True]
    assert poison.left({"output": torch.zeros(3)}) == {}, "the output lies elsewhere now"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
@pytest.mark.parametrize("count", [1, 3])
def test_equal_floats_of_one_byte_get_another_value(dtype: Any, count: int) -> None:
    x = torch.ones(count).to(dtype)
    assert other_floats({"x": x})
    assert x.float().tolist() == [0.5] * count


def test_packed_floats_that_are_equal_stay() -> None:
    packed = torch.full((3,), 0x22, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert not other_floats({"x": packed})
