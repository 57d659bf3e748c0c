"""Stands for vllm-project/vllm#50639: the guard has chosen fork when an import made after it, of a package
of common ops, initializes CUDA."""
