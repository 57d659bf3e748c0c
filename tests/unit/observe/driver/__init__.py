"""Tests of pytest_cudafork.observe.driver."""
