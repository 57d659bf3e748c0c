"""Tests of the core's process."""
