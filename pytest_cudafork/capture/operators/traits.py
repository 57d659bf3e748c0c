"""What an operator does, from its schema and its row in the table of rules.

Whether it is a view, an allocation or work, what it reads and writes, and when it waits for values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from pytest_cudafork.capture.operators.collectives import OVERWRITTEN, UPDATED
from pytest_cudafork.capture.operators.rules import (
    ALLOCATING,
    NO_RULE,
    RULES,
    Kind,
    OnValues,
    Rule,
    always,
)
from pytest_cudafork.compat.torch_graphs.operators import has_python_kernel, is_composite, schema_of


@dataclasses.dataclass(frozen=True)
class Written:
    """An argument that an operator writes."""

    position: int
    name: str
    reads: bool  # what it held before matters
    out: bool  # an ``out=``

    def of(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return it, of the arguments of a call; None where it is left out."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results, in lists, tuples, dicts and slices, too."""
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[torch.Tensor]) -> None:
    """Find tensors; this is done for each call of torch."""
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            _collect(each, found)
    elif isinstance(tree, dict):
        for each in tree.values():
            _collect(each, found)
    elif isinstance(tree, slice):
        _collect((tree.start, tree.stop, tree.step), found)


@dataclasses.dataclass(frozen=True)
class Traits:
    """An operator as a capture sees it."""

    name: str  # "aten::mm"
    kind: Kind
    written: tuple[Written, ...]
    returns: tuple[int | None, ...]  # for each result: which of ``written`` it is, None: it is new
    shape_only: bool  # reads no memory of its inputs
    on_values: OnValues | None  # when a call depends on values; None: never
    waits: bool  # on_values tells of its kernel for CUDA, not of the shape of its result
    has_device: bool
    has_generator: bool
    foreign: bool  # no operator of torch's own
    composite: bool  # made of other operators, which are what is recorded
    overload: str
    places: Mapping[int | str, Written]  # ``written`` by position, and by name

    @property
    def in_python(self) -> bool:
        """Whether it is a custom operator whose kernel for CPU is Python code, as of now."""
        return self.foreign and has_python_kernel(self.name, self.overload)

    def tensors(
        self, args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[torch.Tensor, Written | None]]:
        """Give the tensors among the arguments of a call, each with how it is written, if it is."""
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for place, value in given:
            how = self.places.get(place)
            for tensor in tensors_in(value):
                yield tensor, how


_OF_TORCH = ("aten::", "prims::")
_DEPENDS_ON_VALUES = ("dynamic_output_shape", "data_dependent_output")  # tags


_KNOWN: dict[int, tuple[Any, Traits]] = {}  # by identity: an ``OpOverload`` is slow to hash


def traits_of(op: Any) -> Traits:
    """Return what is known of an ``OpOverload``, learned when it is first asked about."""
    known = _KNOWN.get(id(op))
    if known is None:
        known = _KNOWN[id(op)] = op, _learn(op)
    return known[1]


def _learn(op: Any) -> Traits:
    """Read the schema of an operator, and its row in the table."""
    schema = schema_of(op)
    full = schema.name
    rule, foreign = rule_of(full), not full.startswith(_OF_TORCH)
    collective = full in OVERWRITTEN or full in UPDATED
    written = tuple(
        Written(i, a.name, not (a.is_out or rule.overwrites), bool(a.is_out))
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    if rule.statistics:
        written += tuple(
            Written(i, a.name, True, False)
            for i, a in enumerate(schema.arguments)
            if a.name in ("running_mean", "running_var")
        )
    if collective:
        written = (Written(0, schema.arguments[0].name, full in UPDATED, False),)
    returns = tuple(_source(each, schema, written) for each in schema.returns)
    if collective and len(returns) > 1:
        returns = (0, *returns[1:])  # the argument, and the work
    names = {a.name for a in schema.arguments}
    return Traits(
        name=full,
        kind=_kind(op, schema, rule, bool(written)),
        written=written,
        returns=returns,
        shape_only=not foreign and _reads_shape_only(schema),
        on_values=rule.on_values or (always if _has_tag(op, *_DEPENDS_ON_VALUES) else None),
        waits=rule.waits,
        has_device="device" in names,
        has_generator="generator" in names,
        foreign=foreign,
        composite=is_composite(op),
        overload=schema.overload_name,
        places={place: each for each in written for place in (each.position, each.name)},
    )


def rule_of(name: str) -> Rule:
    """Return what the table says of an operator, by its name with its namespace: "aten::mm"."""
    return RULES.get(name.split("::", 1)[1], NO_RULE) if name.startswith(_OF_TORCH) else NO_RULE


def _kind(op: Any, schema: Any, rule: Rule, writes: bool) -> Kind:
    namespace, _, name = schema.name.partition("::")
    aten = schema.name.startswith(_OF_TORCH)
    if namespace == "profiler":
        return Kind.VIEW
    if rule.kind is not None:
        return rule.kind
    if aten and name.startswith(ALLOCATING):
        return Kind.EMPTY
    if _has_tag(op, "inplace_view"):
        return Kind.VIEW
    if not writes and schema.returns and all(r.alias_info is not None for r in schema.returns):
        return Kind.VIEW
    if not any("Tensor" in str(r.type) for r in schema.returns) and not writes and aten:
        # size, stride, is_same_size, ...: tell of the tensor, not of its contents
        return Kind.SYNC if _has_tag(op, "data_dependent_output") else Kind.VIEW
    return Kind.WORK


def makes_by_shape(name: str) -> bool:
    """Whether what torch calls so makes a tensor by the shape and type of another one alone."""
    return name.endswith("_like") or (name.startswith("new_") and name != "new_tensor")


def _reads_shape_only(schema: Any) -> bool:
    """Whether an operator looks at the shape of its one tensor alone: zeros_like, new_full, ..."""
    if not makes_by_shape(schema.name.partition("::")[2]):
        return False
    tensors = [each for each in schema.arguments if str(each.type) == "Tensor" and not each.is_out]
    return len(tensors) == 1


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
