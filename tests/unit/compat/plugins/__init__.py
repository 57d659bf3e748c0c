"""Tests of pytest_cudafork.compat.plugins."""
