"""Quantized layers."""

from bitsandbytes.cextension import COMPILED_WITH_CUDA

__all__ = ["COMPILED_WITH_CUDA", "quantize"]


def quantize(weights: list[float]) -> list[int]:
    largest = max(abs(weight) for weight in weights)
    return [round(weight / largest * 127) for weight in weights]
