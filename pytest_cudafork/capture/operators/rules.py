"""The table of operators: what torch's schemas do not say of them.

Both backends go by it (through ``traits``), and so does the explanation of a capture that failed on
a GPU. To teach a capture about one more operator of torch, add its name to ``RULES``, without
namespace and overload; operators of other libraries have no rules.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class Kind(enum.Enum):
    """What an operator means for a capture."""

    VIEW = "metadata only; runs on the host, is no work"
    EMPTY = "allocates and writes nothing"
    WORK = "runs on the device"
    SYNC = "its result is needed on the host"
    LIFT = "takes over data from the host"
    SCALAR = "makes a tensor of one value known on the host"
    RESIZE = "changes the size of a storage"


OnHost = Callable[[Tensor], bool]
OnValues = Callable[[Any, Mapping[str, Any], OnHost], bool]
"""``on_values(args, kwargs, on_host)``: whether a call waits for values on a GPU.

``on_host`` tells whether the host knows what a tensor holds.
"""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is known of one operator beside its schema."""

    kind: Kind | None = None  # None: as the schema says
    on_values: OnValues | None = None  # when the shape of its result depends on values
    waits: bool = False  # on_values tells of its kernel for CUDA, not of the result's shape
    overwrites: bool = False  # what it writes in place it does not read
    statistics: bool = False  # in training it writes running_mean and running_var
    written_as: str = ""  # how users write it; for those that hand a value to the host


def always(args: Any, kwargs: Mapping[str, Any], on_host: OnHost) -> bool:
    """Every call waits for values."""
    return True


def _is_given(name: str, *, given: bool = True) -> OnValues:
    """Return whether an argument that has a name is given, or whether it is not."""
    return lambda args, kwargs, on_host: (kwargs.get(name) is not None) is given


def _ends_on_device(args: Any, kwargs: Mapping[str, Any], on_host: OnHost) -> bool:
    """Whether an end of a range is a tensor whose value the host does not know."""
    ends = [*args[:2], *kwargs.values()]
    return any(isinstance(each, Tensor) and not on_host(each) for each in ends)


def _without_range(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    """Whether a histogram has to look for the smallest and the largest value."""
    low = kwargs.get("min", args[2] if len(args) > 2 else 0)
    high = kwargs.get("max", args[3] if len(args) > 3 else 0)
    return bool(low == high)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _mask_read(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    return any(_is_mask(each) for each in args[1])


def _mask_written(args: Any, kwargs: Mapping[str, Any], on_host: OnHost) -> bool:
    if not _mask_read(args, kwargs, on_host):
        return False
    # x[mask] = one number is a masked_fill, if the host knows the number and does not add it
    indices = [each for each in args[1] if each is not None]
    value, accumulate = args[2], len(args) > 3 and bool(args[3])
    return accumulate or len(indices) > 1 or value.numel() != 1 or not on_host(value)


def _on_device(name: str, position: int) -> OnValues:
    """Return whether an argument is a tensor whose value the host does not know."""

    def asks(args: Any, kwargs: Mapping[str, Any], on_host: OnHost) -> bool:
        given = kwargs.get(name, args[position] if position < len(args) else None)
        return isinstance(given, Tensor) and not on_host(given)

    return asks


def _sorted_to_be_found(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    """Whether there are so many elements that torch sorts them, and looks for doubles."""
    both = [each for each in args[:2] if isinstance(each, Tensor)]
    if len(both) < 2 or kwargs.get("assume_unique"):
        return False
    few = both[1].numel() < int(10 * both[0].numel() ** 0.145)
    return not few and both[0].numel() > 0


def _with_checked_lengths(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    return kwargs.get("lengths") is not None and not kwargs.get("unsafe")


def _of_long_rows(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    """Whether rows are too long for the kernel that counts them within a block."""
    tensor, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", -1)
    return bool(tensor.dim()) and tensor.shape[dim] > 2048


def _not_empty(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    return bool(args[0].numel())


def _of_a_batch(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    """Whether there are several matrices, whose addresses go to the device."""
    return bool(args[0].numel()) and args[0].dim() > 2


def _not_one_square_matrix(args: Any, kwargs: Mapping[str, Any], on_host: Any) -> bool:
    shape = args[0].shape
    return bool(args[0].numel()) and (len(shape) > 2 or shape[-1] != shape[-2])


def _waits(on_values: OnValues) -> Rule:
    """Return the rule of operators whose kernels for CUDA wait for values within."""
    return Rule(on_values=on_values, waits=True)


RULES: Mapping[str, Rule] = {
    # Their result is needed on the host.
    "_local_scalar_dense": Rule(
        Kind.SYNC,
        written_as="`.item()`, `float(...)`, `if tensor:`, `print(tensor)` and the like",
    ),
    "item": Rule(written_as="`.item()`"),
    "is_nonzero": Rule(Kind.SYNC, written_as="`if tensor:`"),
    "equal": Rule(Kind.SYNC, written_as="`torch.equal()`"),
    **dict.fromkeys(("allclose", "_linalg_check_errors"), Rule(Kind.SYNC)),
    # The shape of their result depends on values.
    "nonzero": Rule(
        on_values=always, written_as="`nonzero()`, `tensor[mask]` or one-argument `where()`"
    ),
    "masked_select": Rule(on_values=always, written_as="`masked_select()`"),
    "_unique2": Rule(on_values=always, written_as="`unique()`"),
    "bincount": Rule(on_values=always, written_as="`bincount()`"),
    **dict.fromkeys(
        ("nonzero_numpy", "unique_consecutive", "unique_dim", "_unique"), Rule(on_values=always)
    ),
    "repeat_interleave": Rule(
        on_values=_is_given("output_size", given=False),
        written_as="`repeat_interleave()` without `output_size`",
    ),
    "index": Rule(on_values=_mask_read),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), Rule(on_values=_mask_written)),
    # Their kernels for CUDA wait for values within, or take them from the host.
    **dict.fromkeys(("linspace", "logspace"), _waits(_ends_on_device)),
    "histc": _waits(_without_range),
    # None of the deviations may be below zero.
    **dict.fromkeys(("normal", "normal_functional"), _waits(_on_device("std", 1))),
    # The number that fills is asked for.
    **dict.fromkeys(("index_fill", "index_fill_"), _waits(_on_device("value", 3))),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _waits(_on_device("value", 2))),
    "isin": _waits(_sorted_to_be_found),
    "searchsorted": _waits(_is_given("sorter")),  # the places are checked
    "segment_reduce": _waits(_with_checked_lengths),
    "mode": _waits(_of_long_rows),
    **dict.fromkeys(
        (
            "matrix_exp", "linalg_matrix_exp", "cholesky", "linalg_ldl_factor_ex",
            "linalg_ldl_solve", "linalg_eigvals", "_linalg_eigvals", "_linalg_eigh",
            "_linalg_svd", "linalg_pinv",
        ),
        _waits(_not_empty),
    ),
    **dict.fromkeys(
        ("cholesky_inverse", "cholesky_solve", "_cholesky_solve_helper"), _waits(_of_a_batch)
    ),
    **dict.fromkeys(
        ("linalg_lu", "linalg_lu_factor_ex", "_lu_with_info"), _waits(_not_one_square_matrix)
    ),
    **dict.fromkeys(("linalg_eig", "_pack_padded_sequence"), _waits(always)),
    # Data of the host.
    **dict.fromkeys(("lift_fresh", "lift_fresh_copy"), Rule(Kind.LIFT)),
    "scalar_tensor": Rule(Kind.SCALAR),
    "_to_copy": Rule(
        written_as="a copy to or from unpinned host memory (`.cpu()`, `.to()`, `torch.tensor(...)`)"
    ),
    # What they write in place they do not read.
    "copy_": Rule(overwrites=True, written_as="a copy to or from unpinned host memory"),
    **dict.fromkeys(
        (
            "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_",
            "geometric_", "cauchy_", "log_normal_", "_foreach_zero_", "_foreach_copy_",
        ),
        Rule(overwrites=True),
    ),
    # Their memory is that of their argument although the schema says nothing of it.
    **dict.fromkeys(
        ("_unsafe_view", "_reshape_alias", "lift", "set_", "set_data"), Rule(Kind.VIEW)
    ),
    # They change the size of a storage.
    **dict.fromkeys(("resize", "resize_", "resize_as", "resize_as_"), Rule(Kind.RESIZE)),
    # The schema has no result; it looks at the contents of its argument on the device.
    "_assert_async": Rule(Kind.WORK),
    # They write the running statistics in training although the schema says nothing of it.
    **dict.fromkeys(
        (
            "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
            "batch_norm_update_stats",
        ),
        Rule(statistics=True),
    ),
}  # fmt: skip

NO_RULE = Rule()
"""Of an operator that has no row: the schema says all."""

ALLOCATING = ("empty", "new_empty", "_empty_affine")
"""Operators whose names begin so allocate and write nothing."""
