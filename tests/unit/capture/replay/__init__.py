"""Tests of pytest_cudafork.capture.replay."""
