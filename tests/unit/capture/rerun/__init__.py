"""Tests of pytest_cudafork.capture.rerun."""
