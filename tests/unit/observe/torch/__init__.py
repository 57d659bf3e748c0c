"""Tests of pytest_cudafork.observe.torch."""
