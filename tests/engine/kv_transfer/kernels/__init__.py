"""Tests of the kernels that move blocks."""
