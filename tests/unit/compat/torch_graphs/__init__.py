"""Tests of pytest_cudafork.compat.torch_graphs."""
