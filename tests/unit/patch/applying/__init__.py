"""Tests of pytest_cudafork.patch.applying."""
