"""The quantization DeepSeek V4 checkpoints use."""

from engine.models.deepseek_v4.nvidia import ops as _ops  # registers the fused ops' names

NAMES = ("fp8", "deepseek_v4_fp8")


def handles(quantization: str) -> bool:
    return quantization in NAMES and _ops is not None
