"""Tests of the model's kernels."""
