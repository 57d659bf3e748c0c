"""Compares what eager code computed with what a replay left, and words the difference."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import describe
from pytest_cudafork.capture.state.state_tree import Kind, walk
from pytest_cudafork.capture.state.tensors import has_memory
from pytest_cudafork.errors import GraphUsageError

_DEFAULTS: dict[str, tuple[float, float]] = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "complex128": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex32": (1e-3, 1e-5),
}
"""Relative and absolute tolerance, as ``torch.testing.assert_close`` has them."""


class Tolerance(NamedTuple):
    """How far values may be apart; None: by type. Both 0: bitwise, except that NaN is NaN."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return relative and absolute tolerance for a type."""
        rtol, atol = _DEFAULTS.get(str(dtype).removeprefix("torch."), (0.0, 0.0))
        return (
            rtol if self.rtol is None else self.rtol,
            atol if self.atol is None else self.atol,
        )

    @classmethod
    def given(cls, rtol: Any, atol: Any) -> Tolerance:
        """Read what a user gave.

        Raises:
            GraphUsageError: no tolerance can be that.

        """
        for name, value in (("rtol", rtol), ("atol", atol)):
            right = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (right and 0 <= value < math.inf):
                raise GraphUsageError(
                    f"{name}={value!r}: give a finite number that is not below 0, or None for the "
                    "default of the type"
                )
        return cls(rtol, atol)

    @property
    def bitwise(self) -> bool:
        """Whether every bit counts."""
        return self.rtol == 0 and self.atol == 0


class Difference(NamedTuple):
    """Where and how two values differ."""

    path: str
    what: str
    only_nan: bool = False  # the replay has NaN where eager has numbers, and no other difference
    host: bool = False  # a value of Python, not a tensor


def leaves(value: Any, name: str) -> dict[str, Any]:
    """Return tensors and plain values below what a function returned, by path."""
    found = {}
    for node in walk(value, name):
        if node.kind is Kind.TENSOR or (node.kind is Kind.VALUE and node.value is not None):
            found[node.path] = node.value
    return found


def frozen_copy(value: Any, name: str) -> dict[str, Any]:
    """Return copies of the tensors and values below what a function returned."""
    return {
        path: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
        for path, leaf in leaves(value, name).items()
    }


def differences(
    eager: dict[str, Any], replay: dict[str, Any], tolerance: Tolerance, rows: int | None = None
) -> list[Difference]:
    """Compare by path; of tensors only the first ``rows`` along their first dimension."""
    found = []
    for path, expected in eager.items():
        if path not in replay:
            found.append(Difference(path, f"{path}: eager returns {short(expected)}, the graph "
                                          "has no such output", host=True))  # fmt: skip
            continue
        one = difference(path, expected, replay[path], tolerance, rows)
        if one is not None:
            found.append(one)
    return found


def difference(
    path: str, expected: Any, got: Any, tolerance: Tolerance, rows: int | None = None
) -> Difference | None:
    """Compare two values; None if they agree."""
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        return _host_difference(path, expected, got, tolerance)
    if (expected.is_nested or got.is_nested) and torch.strided in (expected.layout, got.layout):
        raise GraphUsageError(
            f"{path} is a nested tensor, which has no shape to compare: return its parts "
            "(nested.unbind())"
        )
    if rows is not None and expected.dim() and got.dim():
        expected, got = expected[:rows], got[:rows]
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return Difference(
            path,
            f"{path}: eager gives {describe(expected)}, the graph {describe(got)}: shape and type "
            "are those of the capture",
        )
    if "meta" in (expected.device.type, got.device.type):
        raise GraphUsageError(
            f"{path} lies on the device meta, where tensors have no values: nothing can be compared"
        )
    if not has_memory(expected) or not has_memory(got):
        expected, got = expected.to_dense(), got.to_dense()
    wrong = elements_wrong(expected, got.to(expected.device), tolerance)
    if not bool(wrong.any()):
        return None
    return _described(path, expected, got.to(expected.device), wrong, tolerance)


def _host_difference(path: str, expected: Any, got: Any, tol: Tolerance) -> Difference | None:
    if type(expected) is float and type(got) is float:
        rtol, atol = tol.of(torch.float64)
        same = math.isclose(expected, got, rel_tol=rtol, abs_tol=atol)
        same = same or (math.isnan(expected) and math.isnan(got))
    elif isinstance(expected, torch.Tensor) or isinstance(got, torch.Tensor):
        same = False
    else:
        same = bool(expected == got)
    if same:
        return None
    words = f"{path} is a value of Python: eager gives {short(expected)}, the graph {short(got)}"
    return Difference(path, words, host=True)


def elements_wrong(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return which elements of two tensors of one type are further apart than they may be."""
    rtol, atol = tolerance.of(expected.dtype)
    inexact = expected.is_floating_point() or expected.is_complex()
    if tolerance.bitwise and expected.is_floating_point():
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = width[expected.element_size()]
        same = expected.contiguous().view(bits) == got.contiguous().view(bits)
        wide_a, wide_b = expected.float(), got.float()
        return ~(same | (wide_a.isnan() & wide_b.isnan()))
    if inexact:
        if expected.element_size() == 1 or str(expected.dtype).endswith("complex32"):
            wide = torch.complex64 if expected.is_complex() else torch.float32
            expected, got = expected.to(wide), got.to(wide)
        return ~torch.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    return expected != got


def _described(
    path: str,
    expected: torch.Tensor,
    got: torch.Tensor,
    wrong: torch.Tensor,
    tolerance: Tolerance,
) -> Difference:
    count, total = int(wrong.sum()), wrong.numel()
    wide = torch.complex128 if expected.is_complex() else torch.float64
    gap = (got.to(wide) - expected.to(wide)).abs()
    gap = torch.where(wrong, torch.nan_to_num(gap, nan=math.inf, posinf=math.inf), -1.0)
    flat = int(gap.reshape(-1).argmax())
    index = [int(each) for each in torch.unravel_index(torch.tensor(flat), expected.shape)]
    a, b = expected.reshape(-1)[flat].item(), got.reshape(-1)[flat].item()
    size = float(gap.reshape(-1)[flat])
    where = f" at [{', '.join(map(str, index))}]" if index else ""
    rtol, atol = tolerance.of(expected.dtype)
    allowed = "bitwise" if tolerance.bitwise else f"rtol={rtol:g}, atol={atol:g}"
    greatest = "" if math.isinf(size) else f", the greatest difference is {size:.4g}"
    words = (
        f"{path}: {count} of {total} elements differ ({describe(expected)}, {allowed})"
        f"{greatest}{where}: eager {number(a)}, replay {number(b)}"
    )
    only_nan = bool(got.to(wide).isnan()[wrong].all())
    return Difference(path, words, only_nan)


def number(value: Any) -> str:
    """Write a number as short as it can be read."""
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def short(value: Any, most: int = 60) -> str:
    """Write any value in one short line."""
    if isinstance(value, torch.Tensor):
        text = describe(value)
        if has_memory(value) and 0 < value.numel() <= 6:
            text += f" {value.tolist()}"
        return text if len(text) <= 2 * most else text[: 2 * most - 3] + "..."
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."
