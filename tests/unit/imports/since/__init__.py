"""Tests of pytest_cudafork.imports.since."""
