"""Tests that run whole pytest sessions or programs, by feature."""
