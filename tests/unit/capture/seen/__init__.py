"""Tests of pytest_cudafork.capture.seen."""
