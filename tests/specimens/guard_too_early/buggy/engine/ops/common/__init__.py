"""Operators that all models share."""

from engine.ops.common.fused_norm_rope import rotate
from engine.ops.common.rope import rotate_reference

__all__ = ["rotate", "rotate_reference"]
