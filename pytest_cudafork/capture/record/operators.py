"""What a record has to know of an operator, learned once for each from its traits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import Traits, traits_of
from pytest_cudafork.capture.record.numbers import VIEWS
from pytest_cudafork.compat.torch_graphs.operators import OpOverload, schema_of

_COPIES = (
    "clone", "_to_copy", "copy_", "_foreach_copy_", "lift_fresh_copy", "contiguous", "alias_copy",
    "detach_copy",
)  # fmt: skip
_HEAVY = (
    "mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot", "embedding", "native_layer_norm",
    "linear", "_fused_rms",
)  # fmt: skip
_NEVER_AGAIN = ("c10d", "_c10d_functional", "symm_mem", "rpc")
"""Namespaces of operators that have side effects, on other processes among others."""


class KnownOperator:
    """One operator.

    Attributes:
        op: the ``OpOverload``.
        traits: what it does.
        kind: the same as ``traits.kind``.
        name: without namespace and overload.
        written: the arguments that it writes, by position and by name.
        draws: whether it draws random numbers, as far as its schema and its tags tell.
        by_generator: whether it takes a generator, and so surely draws unless told not to.
        again: whether it may be run a second time.
        heavy: whether it is a multiplication of matrices or its like.
        copies: whether its result is what it reads.
        foreign: whether it is no operator of torch's own.
        numbered: whether it does no work, and numbers say which part of a tensor it means.

    """

    __slots__ = (
        "again", "by_generator", "copies", "draws", "foreign", "heavy", "kind", "name", "numbered",
        "op", "traits", "written",
    )  # fmt: skip

    def __init__(self, op: Any, traits: Traits) -> None:
        self.op, self.traits, self.kind = op, traits, traits.kind
        space, _, self.name = traits.name.partition("::")
        self.written = traits.places
        self.foreign = traits.foreign
        self.numbered = self.kind is Kind.VIEW and self.name in VIEWS
        self.by_generator = traits.has_generator
        self.draws = self.by_generator or torch.Tag.nondeterministic_seeded in op.tags
        self.again = (
            not self.draws and not space.startswith(_NEVER_AGAIN) and self.kind is not Kind.RESIZE
        )
        self.heavy = self.name.startswith(_HEAVY)
        self.copies = self.name in _COPIES or (self.kind is Kind.VIEW and traits.composite)


class Operators:
    """All operators that were met."""

    def __init__(self) -> None:
        self._known: dict[int, KnownOperator] = {}  # by identity: an ``OpOverload`` is slow to hash

    def __call__(self, op: Any) -> KnownOperator | None:
        """Return what is known of an operator; None: it is of a higher order."""
        known = self._known.get(id(op))
        if known is None and isinstance(op, OpOverload):
            known = self._known[id(op)] = KnownOperator(op, traits_of(op))
        return known


_SWITCHES = ("train", "training")
_PROBABILITIES = ("dropout_p", "p", "dropout")


def draws_nothing(known: KnownOperator, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether attention or dropout, said to be random, draws nothing.

    Its probability is 0, or it does not train. What takes a generator draws with a probability of
    0, too.
    """
    named = _SWITCHES if known.by_generator else (*_SWITCHES, *_PROBABILITIES)
    for index, argument in enumerate(schema_of(known.op).arguments):
        if argument.name not in named:
            continue
        default = kwargs.get(argument.name, argument.default_value)
        value = args[index] if index < len(args) else default
        off = value is False if argument.name in _SWITCHES else value == 0
        if off:
            return True
    return False
