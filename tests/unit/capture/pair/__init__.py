"""Tests of pytest_cudafork.capture.pair."""
