"""Tests of pytest_cudafork.capture.interface."""
