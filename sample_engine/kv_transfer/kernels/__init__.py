"""Triton kernels that move blocks."""
