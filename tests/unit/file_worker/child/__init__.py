"""Tests of the child's side of the file worker."""
