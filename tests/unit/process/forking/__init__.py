"""Tests of pytest_cudafork.process.forking."""
