"""Stands for vllm-project/vllm#54869: an import in a warm-up module initializes CUDA, the guard turns fork
into spawn without a word, and what a test registered is missing in the engine core."""
