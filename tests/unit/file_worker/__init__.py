"""Tests of the file worker."""
