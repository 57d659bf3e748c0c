"""Quantization of whole models."""


def quantized_size(weights: list[float]) -> int:
    import bitsandbytes

    return len(bitsandbytes.quantize(weights))
