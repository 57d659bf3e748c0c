"""Owns what is known of torch's operators by their names, where their schemas do not say it."""

from __future__ import annotations

__all__ = ["reads_shape_only"]


def reads_shape_only(schema_name: str) -> bool:
    """Whether an operator looks at the shapes of its arguments alone: zeros_like, new_full, ...

    ``schema_name`` is qualified: ``aten::zeros_like``. What operators of others do is not known.
    """
    namespace, _, name = schema_name.partition("::")
    return namespace in ("aten", "prims") and (name.endswith("_like") or name.startswith("new_"))
