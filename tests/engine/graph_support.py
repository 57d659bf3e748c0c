"""Owns a graph in software, so that the engine's graph managers run on a machine without a GPU.

A capture records operations and executes none of them: results hold NaN, or numbers that are far
out of range, until a replay. What a graph must not do (wait for the device, shapes that depend on
data) is refused. Work that was not recorded is not replayed: so a graph that lacks something, or
holds what should have been read anew, gives other results than an eager pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from sample_engine.graphs.execution import CapturedGraph, GraphExecution

_WAITS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "is_nonzero")


class NotCapturableError(RuntimeError):
    """Something that a CUDA graph refuses, too."""


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with what nobody can take for a result."""
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(torch.iinfo(tensor.dtype).max // 2 + 1)


class SoftwareGraph(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Operations, and the memory that they work on."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, Callable[..., Any], Any, Any]] = []
        self.is_reset = False

    @property
    def names(self) -> list[str]:
        """The operations that were recorded."""
        return [op[0] for op in self.ops]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record an operation; views are made at once, for they compute nothing."""
        del types
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in _WAITS or _index_by_mask(name, args):
            raise NotCapturableError(f"{name} is not permitted when stream is capturing")
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        schema = func._schema
        written = [
            arg.name for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write
        ]
        if not written and schema.returns and all(each.alias_info for each in schema.returns):
            return func(*args, **kwargs)
        if written:
            self.ops.append((name, func, args, kwargs))
            places = {arg.name: index for index, arg in enumerate(schema.arguments)}
            found = [kwargs[w] if w in kwargs else args[places[w]] for w in written]
            return found[0] if len(found) == 1 else tuple(found)
        return self._new(name, func, args, kwargs)

    def _new(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Record an operation that makes tensors: they are made now, and filled by a replay."""
        without = {"device": "meta"} if "device" in kwargs else {}
        shapes = func(*tree_map(_on_meta, args), **{**tree_map(_on_meta, kwargs), **without})
        out = tree_map(_poisoned_like, shapes)
        if name in ("empty", "empty_like", "new_empty", "empty_strided"):
            return out

        def run(*args: Any, **kwargs: Any) -> None:
            for old, new in zip(
                tree_flatten(out)[0], tree_flatten(func(*args, **kwargs))[0], strict=True
            ):
                if isinstance(old, torch.Tensor):
                    old.copy_(new)

        self.ops.append((name, run, args, kwargs))
        return out

    def replay(self) -> None:
        """Execute what was recorded."""
        assert not self.is_reset, "the graph was let go of"
        with torch.inference_mode():
            for _, run, args, kwargs in self.ops:
                run(*args, **kwargs)

    def reset(self) -> None:
        """Forget it."""
        self.ops.clear()
        self.is_reset = True


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _poisoned_like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return poison(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))


def _index_by_mask(name: str, args: Any) -> bool:
    if name not in ("index", "index_put", "index_put_"):
        return False
    return any(each is not None and each.dtype == torch.bool for each in args[1])


class SoftwareExecution(GraphExecution):
    """Records, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.graphs: list[SoftwareGraph] = []
        self.pools: list[Any] = []  # of each capture
        self.num_sessions = 0
        self._open = False

    def new_pool(self) -> Any:
        """Something that is like nothing else."""
        return object()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Captures happen in one."""
        self.num_sessions += 1
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def capture(self, fn: Callable[[], None], pool: Any) -> CapturedGraph:
        """Record ``fn``."""
        assert self._open, "a capture outside of a session"
        graph = SoftwareGraph()
        with graph:
            fn()
        self.graphs.append(graph)
        self.pools.append(pool)
        return graph

    def synchronize(self) -> None:
        """There is nothing to wait for."""
