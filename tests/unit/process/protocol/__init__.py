"""Tests of pytest_cudafork.process.protocol."""
