"""Operators that all models share; the fused ones are imported from their own modules."""

from engine.ops.common.rope import rotate_reference

__all__ = ["rotate_reference"]
