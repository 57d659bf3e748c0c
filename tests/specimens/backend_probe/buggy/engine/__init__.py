"""Stands for vllm-project/vllm#46996: counting Triton's active backends became a cuInit in Triton 3.8, and
the engine counts them when it is imported."""
