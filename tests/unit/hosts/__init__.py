"""Tests of pytest_cudafork.hosts."""
