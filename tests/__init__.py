"""The tests of pytest-cudafork."""
