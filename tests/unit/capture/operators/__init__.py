"""Tests of pytest_cudafork.capture.operators."""
