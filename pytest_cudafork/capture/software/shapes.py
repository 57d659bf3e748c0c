"""What results an operator has: their shapes, strides and dtypes, without running it.

Small calls are run on scratch copies filled with zeros, so that strides are those of the CPU; large
ones ask the meta kernel. What was found for one set of arguments is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.backend import extent
from pytest_cudafork.capture.operators.collectives import is_collective
from pytest_cudafork.capture.operators.traits import Traits, tensors_in
from pytest_cudafork.compat.torch_graphs.operators import finished_work

_SMALL = 1 << 16  # elements of all arguments
_OF_THIS_CPU = frozenset(  # a meta kernel tells sizes of workspaces and statistics wrongly
    {
        "aten::mkldnn_rnn_layer",
        "aten::native_batch_norm",
        "aten::_native_batch_norm_legit",
        "aten::_native_batch_norm_legit_no_training",
        "aten::_embedding_bag",
        "aten::_embedding_bag_forward_only",
    }
)


class Spec(NamedTuple):
    """A tensor that is to be made."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    nbytes: int  # of the storage


class NotKept:
    """Stands in a key for an argument that no cache may keep: such a key cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]


class Specs(NamedTuple):
    """The results of one operator: a tree of :class:`Spec`, lists, tuples and plain values."""

    results: Any
    resized: tuple[tuple[int, Spec], ...]  # index in ``Traits.written`` of an out= that grows


def signature(args: Any, found: list[Tensor]) -> tuple[Any, ...]:
    """What the results depend on; the tensors are added to ``found``."""
    key: list[Any] = []
    for each in args:
        if isinstance(each, Tensor):
            found.append(each)
            # Sparse tensors have no strides.
            how = each.stride() if each.layout == torch.strided else each.layout
            key.append((each.shape, how, each.dtype))
        elif isinstance(each, (list, tuple)):
            key.append(signature(each, found))
        elif isinstance(each, torch.ScriptObject):  # it may hold a process group: see `group_in`
            key.append(NotKept())
        else:
            key.append((each.__class__, each))
    return tuple(key)


def signature_of(args: Any, kwargs: dict[str, Any], found: list[Tensor]) -> tuple[Any, ...]:
    """What the results of a call depend on; the tensors are added to ``found``."""
    key = signature(args, found)
    return (key, tuple(kwargs), signature(kwargs.values(), found)) if kwargs else key


def map_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """A copy of nested lists and tuples with each tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return [map_tensors(change, each) for each in tree]
    return tree


def unlike_dense(tensor: Tensor) -> str:
    """What a tensor has beside plain memory, which cannot be recorded; "" if it has nothing."""
    if tensor.is_nested:
        return "a nested layout"
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout}"
    # Its scale lies beside its memory, and memory of its type cannot be written without one.
    return f"type {tensor.dtype}" if tensor.is_quantized else ""


def spec_of(tensor: Tensor) -> Spec:
    """What it takes to make such a tensor."""
    if unlike := unlike_dense(tensor):
        raise NotDenseError(unlike)
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    nbytes = extent(shape, stride) * tensor.element_size()
    return Spec(shape, stride, tensor.dtype, nbytes)


class NotDenseError(TypeError):
    """A result is a tensor of another layout, or quantized; it says which."""


class Shapes:
    """Answers from a cache, which several captures may share, else by asking torch."""

    def __init__(self) -> None:
        self._known: dict[Any, Specs | NotDenseError] = {}

    def __call__(
        self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any], key: Any
    ) -> Specs:
        """The results of ``op(*args, **kwargs)``. Raises what the operator raises."""
        key = _with_modes(op, key)
        try:
            found = self._known.get(key)
        except Exception:  # an argument that cannot be hashed or compared
            return self._ask(op, traits, args, kwargs)
        if isinstance(found, NotDenseError):
            raise NotDenseError(*found.args)
        if found is None:
            found = self._known[key] = self._ask(op, traits, args, kwargs)
        return found

    def learn(
        self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any], results: Any
    ) -> None:
        """Note what results a call had that was really made, where an answer would be a guess.

        A meta kernel speaks for all devices, and some operators have other results on a CPU.
        """
        if is_collective(traits.name):
            return
        aten = traits.name.startswith("aten::")
        if (aten and _small(args)) or any(written.out for written in traits.written):
            return
        found: list[Tensor] = []
        key = signature_of(args, kwargs, found)
        learned: Specs | NotDenseError
        try:
            learned = Specs(map_tensors(spec_of, results), ())
        except NotDenseError as error:  # a meta kernel may say that it is dense
            learned = NotDenseError(*error.args)
        with contextlib.suppress(TypeError):  # arguments that cannot be hashed
            self._known.setdefault(_with_modes(op, key), learned)

    def _ask(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Specs:
        if traits.name.startswith("c10d::") and traits.written:
            return Specs(_of_collective(traits, args), ())  # not run: other processes take part
        # On scratch the answer is the operator's own; a native kernel of a user is not run for it.
        aten = traits.name.startswith("aten::")
        scratch = aten and (_small(args) or traits.name in _OF_THIS_CPU)
        ways = (False, True) if scratch else (True, False)
        wrong: Exception | None = None
        for meta in ways:
            try:
                return self._run(op, traits, args, kwargs, meta=meta)
            except Exception as error:
                if isinstance(error, NotDenseError) and not meta:
                    raise
                if wrong is None or not meta:  # in the words of eager code
                    wrong = error
        assert wrong is not None
        raise wrong

    def _run(
        self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any], *, meta: bool
    ) -> Specs:
        copy = _meta_copy if meta else _zero_copy
        new_args = map_tensors(copy, args)
        new_kwargs = {name: map_tensors(copy, each) for name, each in kwargs.items()}
        if meta:
            if traits.has_device:
                new_kwargs["device"] = torch.device("meta")
            new_kwargs.pop("pin_memory", None)
        if new_kwargs.get("generator") is not None:
            new_kwargs["generator"] = None  # it advances in a replay alone
        with _randomness_kept(not meta):
            results = op(*new_args, **new_kwargs)
        resized = []
        for index, written in enumerate(traits.written):
            if written.out:
                made = written.of(new_args, new_kwargs)
                given = written.of(args, kwargs)
                if isinstance(made, Tensor) and made.shape != given.shape:
                    resized.append((index, spec_of(made)))
        return Specs(map_tensors(spec_of, results), tuple(resized))


def _of_collective(traits: Traits, args: Any) -> Any:
    results = tuple(None if source is not None else finished_work() for source in traits.returns)
    return results[0] if len(results) == 1 else results


def _with_modes(op: Any, key: Any) -> tuple[Any, ...]:
    return op, key, torch.get_default_dtype(), torch.is_grad_enabled()


def _small(args: Any) -> bool:
    return bool(sum(each.numel() for each in tensors_in(args)) <= _SMALL)


@contextlib.contextmanager
def _randomness_kept(needed: bool) -> Iterator[None]:
    if not needed:
        yield
        return
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _meta_copy(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=False
    )


def _zero_copy(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
    ).zero_()
