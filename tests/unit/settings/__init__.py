"""Tests of pytest_cudafork.settings."""
