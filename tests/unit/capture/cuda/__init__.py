"""Tests of pytest_cudafork.capture.cuda."""
