"""Tests of the kernels that work on the memory of other ranks."""
