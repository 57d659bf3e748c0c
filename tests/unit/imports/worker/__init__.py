"""Tests of pytest_cudafork.imports.worker."""
