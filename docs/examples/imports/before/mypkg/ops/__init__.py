"""A re-export: whoever imports anything below this package imports the kernel, too."""

from mypkg.ops.fused import fused_norm

__all__ = ["fused_norm"]
