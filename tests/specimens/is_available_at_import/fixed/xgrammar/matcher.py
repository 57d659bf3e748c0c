"""Applies a grammar's bitmask to logits, by the kernel that fits."""

from xgrammar.kernels import cpu


def apply_token_bitmask(logits: list[float], allowed: list[bool], device: str) -> list[float]:
    if device == "cuda":
        from xgrammar.kernels import cuda

        return cuda.apply(logits, allowed)
    return cpu.apply(logits, allowed)
