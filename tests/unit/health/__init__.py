"""Tests of pytest_cudafork.health."""
