"""Tests of pytest_cudafork.imports.graph."""
