"""A kernel whose compiler looks at the GPU when it is imported, as cutlass does."""

import torch

_SMS = torch.cuda.get_device_properties(0).multi_processor_count


def fused_norm(x: torch.Tensor) -> torch.Tensor:
    """Normalize rows."""
    return x / x.norm(dim=-1, keepdim=True) if _SMS else x
