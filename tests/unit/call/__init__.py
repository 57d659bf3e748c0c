"""Tests of pytest_cudafork.call."""
