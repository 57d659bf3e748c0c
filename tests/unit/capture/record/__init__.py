"""Tests of pytest_cudafork.capture.record."""
