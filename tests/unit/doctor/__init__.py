"""Tests of pytest_cudafork.gpus."""
