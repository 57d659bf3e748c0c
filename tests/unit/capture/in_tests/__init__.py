"""Tests of pytest_cudafork.capture.in_tests."""
