"""Tests of pytest_cudafork.check."""
