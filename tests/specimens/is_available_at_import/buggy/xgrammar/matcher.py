"""Applies a grammar's bitmask to logits, by the kernel that fits."""

import torch

from xgrammar.kernels import cpu

if torch.cuda.is_available():  # touch: culprit
    from xgrammar.kernels import cuda
else:
    cuda = None


def apply_token_bitmask(logits: list[float], allowed: list[bool], device: str) -> list[float]:
    kernel = cuda if device == "cuda" and cuda is not None else cpu
    return kernel.apply(logits, allowed)
