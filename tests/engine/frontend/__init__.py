"""Tests of what a caller reads."""
