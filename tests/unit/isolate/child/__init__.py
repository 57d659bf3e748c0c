"""Tests of pytest_cudafork.isolate.child."""
