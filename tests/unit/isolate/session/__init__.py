"""Tests of pytest_cudafork.isolate.session."""
