"""Tests of pytest_cudafork.capture.state."""
