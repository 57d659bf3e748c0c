"""Tests of pytest_cudafork.capture.judge."""
