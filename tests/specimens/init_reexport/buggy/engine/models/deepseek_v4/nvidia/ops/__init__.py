"""The NVIDIA kernels of DeepSeek V4."""

from engine.models.deepseek_v4.nvidia.ops.sparse_attn_compressor_cutedsl import compress_kv

__all__ = ["compress_kv"]
