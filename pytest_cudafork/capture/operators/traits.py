"""Owns what is known of an operator from its schema: view, allocation, work, what it writes.

It sees no tensor and records nothing.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch

from pytest_cudafork.capture.operators.rules import reads_shape_only

__all__ = ["Kind", "Traits", "Written", "traits_of"]


class Kind(enum.Enum):
    """What an operator means for a capture."""

    VIEW = "metadata only; runs on the host, is no work"
    EMPTY = "allocates and writes nothing"
    WORK = "runs on the device"
    SYNC = "its result is needed on the host"
    LIFT = "takes over data from the host"
    SCALAR = "makes a tensor of one value known on the host"
    RESIZE = "changes the size of a storage"


@dataclasses.dataclass(frozen=True)
class Written:
    """An argument that an operator writes."""

    position: int
    name: str
    reads: bool  # what it held before matters
    out: bool  # an ``out=``


@dataclasses.dataclass(frozen=True)
class Traits:
    """An operator as a capture sees it."""

    name: str  # "aten::mm"
    kind: Kind
    written: tuple[Written, ...]
    returns: tuple[int | None, ...]  # for each result: which of ``written`` it is, None: it is new
    list_return: bool  # one result that is a list
    shape_only: bool  # reads no memory of its inputs
    dynamic: bool  # the shape of the result may depend on values
    waiting: bool  # dynamic, but not for the shape of the result
    has_device: bool
    has_generator: bool
    in_python: bool  # a custom operator whose kernel for CPU is Python code
    composite: bool  # made of other operators, which are what is recorded


_SYNCS = frozenset(
    {"_local_scalar_dense", "equal", "allclose", "is_nonzero", "_linalg_check_errors"}
)
_DYNAMIC = frozenset(
    {
        "nonzero",
        "masked_select",
        "unique_consecutive",
        "unique_dim",
        "_unique",
        "_unique2",
        "bincount",
        "repeat_interleave",
        "index",
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "nonzero_numpy",
    }
)
# Their kernels for CUDA wait for values within, or take them from the host.
_WAITING = frozenset(
    {"linspace", "logspace", "histc", "embedding_renorm_", "_pack_padded_sequence"}
)  # fmt: skip
_OVERWRITES = frozenset(
    {"copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_",
     "geometric_", "cauchy_", "log_normal_", "_foreach_zero_", "_foreach_copy_"}
)  # fmt: skip
# Their memory is that of their argument although the schema says nothing of it.
_VIEWS = frozenset({"_unsafe_view", "_reshape_alias", "lift", "set_", "set_data", "resize_output_"})
# They write the running statistics in training although the schema says nothing of it.
_NORMS = frozenset(
    {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats"}
)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_KERNEL_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def traits_of(op: Any) -> Traits:
    """Read the schema of an ``OpOverload``."""
    schema = op._schema
    full = schema.name
    name = full.split("::", 1)[1]
    aten = full.startswith(("aten::", "prims::"))
    written = tuple(
        Written(i, a.name, not (a.is_out or name in _OVERWRITES), bool(a.is_out))
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    if name in _NORMS:
        written += tuple(
            Written(i, a.name, True, False)
            for i, a in enumerate(schema.arguments)
            if a.name in ("running_mean", "running_var")
        )
    returns = tuple(_source(each, schema, written) for each in schema.returns)
    names = {a.name for a in schema.arguments}
    return Traits(
        name=full,
        kind=_kind(op, name, aten, bool(written)),
        written=written,
        returns=returns,
        list_return=len(schema.returns) == 1 and str(schema.returns[0].type).startswith("List"),
        shape_only=reads_shape_only(schema),
        dynamic=_has_tag(op, "dynamic_output_shape", "data_dependent_output")
        or (aten and (name in _DYNAMIC or name in _WAITING)),
        waiting=aten and name in _WAITING,
        has_device="device" in names,
        has_generator="generator" in names,
        in_python=not aten and _in_python(full, schema.overload_name),
        composite=op.has_kernel_for_dispatch_key(_COMPOSITE),
    )


def _kind(op: Any, name: str, aten: bool, writes: bool) -> Kind:
    schema = op._schema
    if schema.name.startswith("profiler::"):
        return Kind.VIEW
    if aten and name in _SYNCS:
        return Kind.SYNC
    if aten and name in ("lift_fresh", "lift_fresh_copy"):
        return Kind.LIFT
    if aten and name == "scalar_tensor":
        return Kind.SCALAR
    if aten and name in ("resize_", "resize_as_", "resize", "resize_as"):
        return Kind.RESIZE
    if aten and name.startswith(("empty", "new_empty", "_empty_affine")):
        return Kind.EMPTY
    if (aten and name in _VIEWS) or _has_tag(op, "inplace_view"):
        return Kind.VIEW
    if not writes and schema.returns and all(r.alias_info is not None for r in schema.returns):
        return Kind.VIEW
    if not any("Tensor" in str(r.type) for r in schema.returns) and not writes and aten:
        # size, stride, is_same_size, ...: tell of the tensor, not of its contents
        return Kind.SYNC if _has_tag(op, "data_dependent_output") else Kind.VIEW
    return Kind.WORK


def _has_tag(op: Any, *names: str) -> bool:
    return any(getattr(torch.Tag, name, None) in op.tags for name in names)


def _source(result: Any, schema: Any, written: tuple[Written, ...]) -> int | None:
    if result.alias_info is None:
        return None
    for index, each in enumerate(written):
        info = schema.arguments[each.position].alias_info
        if info is not None and info.before_set & result.alias_info.before_set:
            return index
    return None


def _in_python(full: str, overload: str) -> bool:
    known = getattr(torch.library, "_impls", ())
    namespace, name = full.split("::", 1)
    spelled = f"{name}.{overload}" if overload else name
    return any(f"{namespace}/{spelled}/{key}" in known for key in _KERNEL_KEYS)
