"""Tests of pytest_cudafork.programs."""
