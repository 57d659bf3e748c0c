"""Tests of the kernels of speculation."""
