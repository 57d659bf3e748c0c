"""Tests of pytest_cudafork.capture.software."""
