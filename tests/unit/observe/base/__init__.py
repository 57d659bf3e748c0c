"""Tests of pytest_cudafork.observe.base."""
