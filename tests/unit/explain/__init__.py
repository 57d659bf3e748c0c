"""Tests of what explains a pasted log."""
