"""Tests of pytest_cudafork.capture.stand-ins."""
