"""Tests of pytest_cudafork.capture.story."""
