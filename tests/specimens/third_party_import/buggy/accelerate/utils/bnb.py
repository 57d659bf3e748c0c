"""Quantization of whole models."""

import bitsandbytes


def quantized_size(weights: list[float]) -> int:
    return len(bitsandbytes.quantize(weights))
