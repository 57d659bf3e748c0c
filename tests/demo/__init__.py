"""Tests of what the demo starts."""
