"""Owns what is known of torch's operators by their names, where their schemas do not say it."""

from __future__ import annotations

from typing import Any

__all__ = ["reads_shape_only"]


def reads_shape_only(schema: Any) -> bool:
    """Whether an operator looks at the shape of its one tensor alone: zeros_like, new_full, ...

    ``schema`` is an ``OpOverload``'s. What operators of others do is not known.
    """
    namespace, _, name = schema.name.partition("::")
    of_torch = namespace in ("aten", "prims")
    if not (of_torch and (name.endswith("_like") or name.startswith("new_"))):
        return False
    tensors = [each for each in schema.arguments if str(each.type) == "Tensor" and not each.is_out]
    return len(tensors) == 1
