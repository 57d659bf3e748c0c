"""Tests of pytest_cudafork.process.descendants."""
