"""Triton kernels that work on the memory of other ranks."""
