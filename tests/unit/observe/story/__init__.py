"""Tests of pytest_cudafork.observe.story."""
