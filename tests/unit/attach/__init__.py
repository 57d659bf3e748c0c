"""Tests of pytest_cudafork.attach."""
